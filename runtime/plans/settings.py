"""How the calls of a module are planned, the first and new ones."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

from ...solver.errors import InputError
from .plan_cache import Solving

OnNewShape = Literal["plan", "plain", "refuse"]


@dataclass(frozen=True)
class Settings:
    """How new calls are planned.

    Attributes
    ----------
    budget_bytes, extra_resident_bytes, times
        The same for every plan; `budget_bytes` is the whole device memory.
    solving
        Settings of the solver.
    on_new_shape
        `plan` it, run the `plain` model, or `refuse` it.
    max_plans
        Plans kept beside the first.
    accumulate
        Every plan is for steps that add to existing gradients.
    """

    budget_bytes: int
    extra_resident_bytes: int
    times: Literal["roofline", "measured"]
    solving: Solving
    on_new_shape: OnNewShape
    max_plans: int
    accumulate: bool = False

    def __post_init__(self) -> None:
        """Refuse what is not among the choices."""
        if self.on_new_shape not in ("plan", "plain", "refuse"):
            raise InputError(f"on_new_shape={self.on_new_shape!r}: choose plan, plain or refuse")
        if self.max_plans < 1:
            raise InputError(f"max_plans={self.max_plans}: it must be at least 1")


def solving(time_limit: float, seed: int) -> Solving:
    """Settings of the solver, with the threads that `solve` takes by default."""
    return Solving(time_limit, seed, min(2, os.cpu_count() or 1))
