"""Backends by name: `highs`, `cpsat`, `ortools[:SOLVER]`, `pulp[:SOLVER]`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import InputError

if TYPE_CHECKING:
    from .problem import Backend

BACKENDS = ("highs", "cpsat", "ortools", "pulp")


def backend(name: str) -> Backend:
    """The backend called `name`; solvers are imported only when asked for.

    Raises
    ------
    InputError
        If there is none of that name, or its package is missing.
    """
    kind, _, solver = name.partition(":")
    try:
        if kind == "highs" and not solver:
            from .highs import Highs

            return Highs()
        if kind == "cpsat" and not solver:
            from .cpsat import CpSat

            return CpSat()
        if kind == "ortools":
            from .scip import OrTools

            return OrTools(solver or "SCIP")
        if kind == "pulp":
            from .pulp_backend import Pulp

            return Pulp(solver or "PULP_CBC_CMD")
    except ModuleNotFoundError as error:
        raise InputError(f"backend {name!r} needs the package {error.name}: install it") from None
    raise InputError(f"no backend {name!r}: choose highs, cpsat, ortools[:NAME] or pulp[:NAME]")
