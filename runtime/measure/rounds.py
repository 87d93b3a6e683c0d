"""Rounds of whole steps: a few plans in turns with the step that computes nothing again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...frontends.torch.costs.meter import measure_step_time
from .step_times import NoisyError, Rounds, calibration_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from ...solver.calibration import Calibration

    Step = Callable[[], Any]

GROUP = 5  # plans in one round: the closer they follow each other, the less a clock drifts between
_ROUNDS = (7, 100)


@dataclass(frozen=True)
class Contender:
    """A plan's step, the sum of its op times, and its digest if somebody asked for the plan."""

    run: Step
    op_ns: int
    plan: str = ""


@dataclass
class _Group:
    contenders: Sequence[Contender]
    calls: dict[str, Step]
    rounds: int = 0
    seconds: dict[str, list[float]] = field(default_factory=dict)

    def base(self) -> list[float]:
        """Of two modules of one plan: where the memory of one happens to lie makes some percent."""
        both = zip(self.seconds["base"], self.seconds["again"], strict=True)
        return [(a + b) / 2 for a, b in both]


def run_rounds(
    first_ns: int,
    base: tuple[Step, Step],
    contenders: Sequence[Contender],
    plain: Step | None,
    known: Calibration | None,
    *,
    seconds: float,
    device: torch.device,
    clock: Callable[[], int],
) -> Calibration:
    """Time steps in turns, twice as often again where they vary too much.

    Parameters
    ----------
    first_ns
        The sum of op times of the plan that computes nothing again.
    base
        Steps of two modules of it.
    contenders
        The other plans; at most `GROUP` of them take turns, together with `base` and `plain`.
    plain
        The step of plain PyTorch, None if it is not to be timed.
    known
        What was measured before, to which this is added.
    seconds
        About how long it may take, as far as 7 to 100 rounds of each group allow.

    Raises
    ------
    NoisyError
        If steps vary too much all the same.
    """
    groups = []
    for start in range(0, max(1, len(contenders)), GROUP):
        some = contenders[start : start + GROUP]
        calls = {str(place): one.run for place, one in enumerate(some)}
        calls |= {"base": base[0], "again": base[1]}
        if plain is not None:
            calls["plain"] = plain
        groups.append(_Group(some, calls))
    for group in groups:
        # What a round takes, untimed runs included.
        trial = measure_step_time(group.calls, 1, warmup=2, settle=True, device=device, clock=clock)
        whole = 2 * sum(values[0] for values in trial.values())
        rounds = int(seconds / len(groups) / max(1e-9, whole))
        group.rounds = min(max(rounds, _ROUNDS[0]), _ROUNDS[1])
        group.seconds = {name: [] for name in group.calls}
    for last in (False, True):
        for group in groups:
            more = measure_step_time(
                group.calls, group.rounds, warmup=0, settle=True, device=device, clock=clock
            )
            for name, values in more.items():
                group.seconds[name] += values
            group.rounds *= 2
        try:
            return _told(first_ns, groups, known, plain is not None)
        except NoisyError:
            if last:
                raise
    raise AssertionError("the last rounds return or raise")


def _told(
    first_ns: int, groups: Sequence[_Group], known: Calibration | None, plain: bool
) -> Calibration:
    base = [group.base() for group in groups]
    found = [
        Rounds(one.op_ns, group.seconds[str(place)], of, one.plan)
        for group, of in zip(groups, base, strict=True)
        for place, one in enumerate(group.contenders)
    ]
    theirs = [time for group in groups for time in group.seconds["plain"]] if plain else None
    return calibration_of(first_ns, found, [time for of in base for time in of], theirs, known)
