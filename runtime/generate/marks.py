"""Where generated code stops because a sharded unit's parameters are used first or last."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...frontends.torch.program import Program
    from .code import Sharding
    from .emitter import Emitter
    from .order import Order, Step


@dataclass(frozen=True)
class Marks:
    """Places of the steps around which the code stops.

    Attributes
    ----------
    enter, leave
        Place in forward -> units that come in before it, and go out after it. A unit that the
        forward does not use comes and goes at the start, as its collectives would in eager.
    enter_again
        Place in backward -> units that come in before it.
    last
        Unit -> place of its last use in backward.
    values
        For each unit: values of its parameters, in the order of the program's inputs.
    """

    enter: dict[int, list[int]] = field(default_factory=dict)
    leave: dict[int, list[int]] = field(default_factory=dict)
    enter_again: dict[int, list[int]] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)
    values: tuple[tuple[int, ...], ...] = ()

    @classmethod
    def of(
        cls, program: Program, order: Order, emitter: Emitter, sharding: Sharding | None
    ) -> Marks:
        """Find the first and last uses; nothing without sharding."""
        if sharding is None:
            return cls()
        count = len(sharding.outside)
        values: list[list[int]] = [[] for _ in range(count)]
        for place, unit in sorted(sharding.of_input.items()):
            values[unit].append(emitter.inputs[place])
        unit_of = {emitter.key(v): unit for unit, group in enumerate(values) for v in group}
        first, last = _uses(program, order.forward, emitter, unit_of)
        for unit in reversed(range(count)):
            # Units are numbered from the outside in. An outer one is there while an inner one is.
            first.setdefault(unit, 0)
            last.setdefault(unit, first[unit])
            outer = sharding.outside[unit]
            if outer >= 0:
                first[outer] = min(first.get(outer, first[unit]), first[unit])
                last[outer] = max(last.get(outer, last[unit]), last[unit])
        marks = cls(values=tuple(tuple(group) for group in values))
        for unit in range(count):
            marks.enter.setdefault(first[unit], []).append(unit)
        for unit in reversed(range(count)):
            marks.leave.setdefault(last[unit], []).append(unit)
        again, until = _uses(program, order.backward, emitter, unit_of)
        for unit, place in sorted(again.items()):
            marks.enter_again.setdefault(place, []).append(unit)
        marks.last.update(until)
        return marks


def _uses(
    program: Program, steps: Sequence[Step], emitter: Emitter, unit_of: dict[int, int]
) -> tuple[dict[int, int], dict[int, int]]:
    """Unit -> place of its first and of its last use."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for place, step in enumerate(steps):
        if step.op < 0:
            continue
        for value in program.ops[step.op].reads:
            unit = unit_of.get(emitter.key(value))
            if unit is not None:
                first.setdefault(unit, place)
                last[unit] = place
    return first, last
