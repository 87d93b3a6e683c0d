"""The executions of a schedule, split at the boundary between forward and backward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...frontends.torch.program import Kind
from ...solver.errors import ReplayError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...frontends.torch.program import Program
    from ...solver.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Step:
    """One step: an execution of `op`, or the free of tensor `free`.

    `again` marks a rerun; `spared` the saving of a generator's state that nobody puts back, which
    is left out; `overwrites` is the tensor whose memory the result takes, or -1;
    `place` is the number of the execution in the whole schedule.
    """

    op: int = -1
    free: int = -1
    again: bool = False
    spared: bool = False
    overwrites: int = -1
    place: int = -1


@dataclass(frozen=True)
class Order:
    """Steps that run in forward, and steps that run in backward; the boundary is in neither."""

    forward: tuple[Step, ...]
    backward: tuple[Step, ...]

    @classmethod
    def of(cls, program: Program, schedule: Schedule) -> Order:
        """Split `schedule`.

        Raises
        ------
        ReplayError
            If it draws random numbers in another order than the captured step, or updates a
            buffer or an input in backward.
        """
        phases: list[list[Step]] = [[]]
        ran: set[int] = set()
        last_draw = -1
        kinds = [op.kind for op in program.ops]
        boundary = kinds.index(Kind.BACKWARD) if Kind.BACKWARD in kinds else len(kinds)
        steps = tuple(schedule)
        count = -1
        for place, number in enumerate(steps):
            count += number >= 0
            if number < 0:
                phases[-1].append(Step(free=-number - 1))
                continue
            op = program.ops[number]
            name = program.graph.ops[number].name
            if op.kind is Kind.BACKWARD:
                phases.append([])
                continue
            again = number in ran
            ran.add(number)
            taken = int(program.graph.arrays.overwrites[number])
            if taken not in _freed_after(steps, place):
                taken = -1
            spared = op.kind is Kind.RNG_STATE and (
                program.value_tensor[op.writes[0]] in _freed_after(steps, place)
            )
            phases[-1].append(
                Step(number, again=again, spared=spared, overwrites=taken, place=count)
            )
            draws = op.kind is Kind.RNG_STATE or (op.random and not again)
            if draws and (number > boundary) is (len(phases) == 1):
                raise ReplayError(
                    f"the plan moves the random op {name} across the start of the backward: its "
                    "random numbers would change"
                )
            if draws and number < last_draw:
                raise ReplayError(
                    f"the plan moves the random op {name} after one that draws later in the "
                    "captured step: its random numbers would change"
                )
            if draws:
                last_draw = number
            once = again and op.again is None
            if op.changes and (once or (len(phases) > 1 and not again)):
                raise ReplayError(
                    f"the plan must run {name} {'once and ' if op.again is None else ''}before the "
                    "backward starts: it changes a buffer or an input"
                )
            if op.random and again and op.rng_value is None:
                raise ReplayError(f"the plan reruns {name}, whose random state is not saved")
        if len(phases) > 2:
            raise ReplayError("the plan starts the backward twice")
        backward = phases[1] if len(phases) == 2 else []
        return cls(tuple(phases[0]), tuple(backward))


def _freed_after(steps: tuple[int, ...], place: int) -> Iterator[int]:
    """Tensors that are freed between the op at `place` and the next one."""
    place += 1
    while place < len(steps) and steps[place] < 0:
        yield -steps[place] - 1
        place += 1
