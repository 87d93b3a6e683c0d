"""Integer programs in threads of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from lowtide.frontends.generated import random_graph
from lowtide.solver.control import Control
from lowtide.solver.milp import highs
from lowtide.solver.milp.highs import Highs
from lowtide.solver.milp.problem import INF, Answer, Effort, Outcome
from lowtide.solver.milp.running import Running
from lowtide.solver.milp.staged import build
from lowtide.solver.milp.stages import every_op, free_tensors
from lowtide.solver.schedule import Schedule
from lowtide.solver.simulate import simulate

if TYPE_CHECKING:
    from lowtide.solver.milp.problem import Problem


def _problem(ops: int) -> Problem:
    graph = random_graph(12, ops, training=True)
    base = simulate(graph, Schedule.keep_everything(graph)).peak_bytes
    free = free_tensors(graph, base, 0.0)
    return build(graph, int(0.8 * base), every_op(graph), free).problem


def _run(problem: Problem, backend: Any, cutoff: float = INF) -> Running:
    return Running(
        backend, problem, Effort(Control(60.0), 60.0, 1e-6, threads=1, seed=0), cutoff=cutoff,
        start=None,
    )  # fmt: skip


def test_solutions_are_seen_while_it_works_and_are_solutions() -> None:
    """What a peek shows satisfies all rows; the answer is at least as good."""
    problem = _problem(24)
    run = _run(problem, Highs())
    assert run.wait(lambda: False)
    early = run.so_far()
    answer = run.finish()
    assert answer.outcome == Outcome.OPTIMAL
    assert early.values is not None
    activity = [
        float(problem.value[a:b] @ early.values[problem.index[a:b]])
        for a, b in zip(problem.start[:-1], problem.start[1:], strict=True)
    ]
    assert all(x >= low - 1e-4 for x, low in zip(activity, problem.row_lower, strict=True))
    assert all(x <= high + 1e-4 for x, high in zip(activity, problem.row_upper, strict=True))
    assert early.objective >= answer.objective - 1e-6


def test_it_can_be_cancelled() -> None:
    """An end before the proof leaves a bound that is true, and a solution or none."""
    problem = _problem(24)
    whole = _run(problem, Highs())
    whole.wait(lambda: False)
    optimum = whole.finish().objective
    run = _run(problem, Highs())
    assert not run.wait(lambda: True)
    answer = run.finish()
    assert answer.bound <= optimum * (1 + 1e-6)
    assert answer.objective >= optimum * (1 - 1e-6)


def test_errors_reach_the_thread_that_asks() -> None:
    """A backend that breaks down does not go unnoticed."""

    class Broken:
        name = "broken"

        def solve(self, *_: Any, **__: Any) -> None:
            raise RuntimeError("broken backend")

    run = _run(_problem(8), Broken())
    run.wait(lambda: False)
    with pytest.raises(RuntimeError, match="broken backend"):
        run.finish()


def test_a_start_that_presolve_takes_for_a_cheaper_solution_ends_no_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The start is told as optimal, at less than it costs: then the program is solved without."""
    problem = _problem(24)
    run = _run(problem, Highs())
    run.wait(lambda: False)
    right = run.finish()
    assert right.values is not None
    dear = np.where(problem.integer, 1.0, right.values)
    cost = float(problem.cost @ dear) + problem.offset
    assert cost > right.objective
    solve_once = highs._solve_once

    def lies(given: Problem, effort: Effort, *, start: Any, **options: Any) -> Answer:
        if start is None:
            return solve_once(given, effort, start=start, **options)
        return Answer(Outcome.OPTIMAL, start, right.objective - 1.0, right.objective - 1.0)

    monkeypatch.setattr(highs, "_solve_once", lies)
    answer = Highs().solve(
        problem, Effort(Control(60.0), 60.0, 1e-6, threads=1, seed=0), start=dear
    )
    assert answer.outcome == Outcome.OPTIMAL
    assert answer.objective == pytest.approx(right.objective)
    assert answer.bound == pytest.approx(right.objective)
