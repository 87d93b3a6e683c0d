"""CP-SAT in a thread of its own, so that the time limit and Ctrl-C reach it at any moment."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

    from .control import Control


def solve_until(solver: cp_model.CpSolver, model: cp_model.CpModel, control: Control) -> int:
    """Solve until `control` is over; the status, as a number of CP-SAT's.

    Its own handler of Ctrl-C stays off: it replaces Python's, and can end the process.
    """
    solver.parameters.catch_sigint_signal = False
    status: list[int] = []
    thread = threading.Thread(target=lambda: status.append(int(solver.solve(model))), daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(0.05)
            if control.over:
                solver.stop_search()
    finally:  # a second Ctrl-C: no thread is left behind
        while thread.is_alive():
            solver.stop_search()
            thread.join(0.05)
    return status[0]
