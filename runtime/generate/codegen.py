"""Generates straight-line Python from a program and a schedule.

One statement per op (`v12, v13 = topk(v3, 5)`), one `del` per free. A storage may have many names,
its views: a view is made right before its first use after the storage was produced, and all names
of a storage are deleted where the schedule frees it. What the code holds at any moment is what
`simulate` counts at that step.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from ...solver.errors import ReplayError
from ..step.passed_on import passing_on
from .absent import Missing
from .code import StepCode
from .emitter import Emitter
from .functions import alias_source, backward_source, forward_source, overwritten_places, targets_of
from .gradients import made_early, plan_departures, tangents_behind
from .marks import Marks
from .order import Order
from .source import build_functions
from .sums import sums_of, where_sums_begin

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ...frontends.torch.program import Program
    from ...solver.schedule import Schedule
    from ..step.arena import Arena
    from .code import Sharding
    from .gradients import Departures


def generate(
    program: Program,
    schedule: Schedule,
    *,
    stages: int | None = None,
    arena: Arena | None = None,
    sharding: Sharding | None = None,
    absent: frozenset[int] = frozenset(),
    passed_on: frozenset[int] = frozenset(),
) -> StepCode:
    """Code that runs `schedule`.

    Parameters
    ----------
    program
        The captured step.
    schedule
        A valid schedule of `program.graph`.
    stages
        Largest number of backward stages; None lets gradient bytes and step time decide.
    arena
        Where to put what has a fixed place; None allocates everything when it is made.
    sharding
        Units whose parameters are there only between two stops of the code.
    absent
        Places of tangents that do not arrive: backward then does without what hangs on them, as
        plain PyTorch's does; forward, and what it hands over, are the same.
    passed_on
        Gradients of inputs that have a history.

    Raises
    ------
    ReplayError
        If the schedule computes a forward output after the backward starts, or moves a random op
        or a buffer update to where it would change results. The graph of a captured step rules
        both out.
    """
    order = Order.of(program, schedule)
    emitter = Emitter(program, arena=arena)
    values, aliases, leaves = _output_places(program, emitter)
    marks = Marks.of(program, order, emitter, sharding)
    for place, step in enumerate(order.forward):
        for unit in marks.enter.get(place, ()):
            targets = f"{targets_of(marks.values[unit])} = " if marks.values[unit] else ""
            emitter.line(f"{targets}yield {unit}")
        emitter.step(step)
        for unit in marks.leave.get(place, ()):
            emitter.line(f"yield {-1 - unit}")
    emitter.count_versions()
    for value in values:
        if not emitter.holds(value):
            raise ReplayError(
                f"the plan computes the output {emitter.describe(value)} after the backward starts"
            )
        emitter.ensure(value)
    forward = emitter.lines
    emitter.start_backward(_missing(program, order, emitter, arena, absent))
    emitter.instead = passing_on(program, passed_on)
    emitter.begun = where_sums_begin(program, order, emitter.dead, placed=arena is not None)
    departures = plan_departures(program, order, emitter, stages, sharding)
    staged = sharding is not None or len(departures.ends) > 1
    stage_gradients, ends, done = _write_backward(
        program, order, emitter, departures, marks, staged
    )
    emitter.hold_to_the_end()
    backward = emitter.lines
    if not staged:
        given = "".join(f"g{g}, " for g in stage_gradients[0])
        backward.append(f"return ({given})")
    source = "\n".join(
        [
            *forward_source(emitter, forward, values),
            "",
            *backward_source(emitter, backward, staged, seeded=bool(sums_of(program))),
            "",
            *alias_source(program, emitter, aliases),
            "",
        ]
    )
    functions = build_functions(
        source, emitter.namespace.globals, ("forward", "backward", "alias_outputs"), "plan"
    )
    read_later = {emitter.key(value) for value in emitter.carried}
    place_of = {value: place for place, value in enumerate(values)}
    inputs = [spec for spec in program.inputs if spec.kind != "tangent"]
    # What the step itself writes is read again only where its contents do not matter.
    written = {emitter.key(program.inputs[i].value) for i in _written(program)}
    return StepCode(
        source=source,
        staged=staged,
        forward=functions[0],
        backward=functions[1],
        alias_outputs=functions[2] if aliases else None,
        output_values=tuple(values),
        leaves=leaves,
        stages=stage_gradients,
        stage_ends=ends,
        tangents_behind=tangents_behind(program),
        early=made_early(program, order, emitter),
        overwritten=overwritten_places(emitter),
        saved_outputs=tuple(
            (place, place_of[v]) for place, v in enumerate(emitter.carried) if v in place_of
        ),
        watched_outputs=tuple(i for i, v in enumerate(values) if emitter.key(v) in read_later),
        watched_inputs=tuple(
            i for i, spec in enumerate(inputs) if emitter.key(spec.value) in read_later - written
        ),
        without=_Variants(program, schedule, stages, arena, sharding, tuple(emitter.carried)),
        done=done,
        begun=frozenset(begin.number for begin in emitter.begun.values()),
        extra=tuple((place, b.extra) for place, b in emitter.begun.items() if b.extra),
    )


def _missing(
    program: Program, order: Order, emitter: Emitter, arena: Arena | None, absent: frozenset[int]
) -> Missing | None:
    """What backward does without; None if all tangents arrive."""
    if not absent:
        return None
    taken = {step.overwrites for step in order.backward if step.overwrites >= 0}
    taken |= {emitter.key(spec.value) for spec in program.gradients if spec.value is not None}
    if arena is not None:
        taken |= arena.tensors
    return Missing(program, absent, frozenset(taken))


class _Variants:
    """Backwards without some tangents or for other inputs, generated when first needed."""

    def __init__(
        self,
        program: Program,
        schedule: Schedule,
        stages: int | None,
        arena: Arena | None,
        sharding: Sharding | None,
        carried: tuple[int, ...],
    ) -> None:
        self._program, self._schedule, self._stages = program, schedule, stages
        self._arena, self._sharding, self._carried = arena, sharding, carried
        self._known: dict[tuple[frozenset[int], frozenset[int]], Callable[..., Any]] = {}

    def __call__(self, absent: frozenset[int], passed_on: frozenset[int]) -> Callable[..., Any]:
        found = self._known.get((absent, passed_on))
        if found is None:
            code = generate(
                self._program, self._schedule, stages=self._stages, arena=self._arena,
                sharding=self._sharding, absent=absent, passed_on=passed_on,
            )  # fmt: skip
            variants = code.without
            assert isinstance(variants, _Variants)
            assert variants._carried == self._carried  # what forward hands over fits both
            found = self._known[absent, passed_on] = code.backward
        return found


def _written(program: Program) -> set[int]:
    """Inputs that the step updates in place."""
    return {changed for op in program.ops for changed in op.changes}


def _output_places(
    program: Program, emitter: Emitter
) -> tuple[list[int], list[int], tuple[tuple[str, int], ...]]:
    """Values that forward returns, values that alias an input, and where each leaf comes from."""
    values: list[int] = []
    aliases: list[int] = []
    leaves: list[tuple[str, int]] = []
    given = set(emitter.inputs)
    for place, spec in enumerate(program.outputs):
        if spec.value is None:
            leaves.append(("literal", place))
            continue
        alias = emitter.root(spec.value) in given
        found = aliases if alias else values
        if spec.value not in found:
            found.append(spec.value)
        leaves.append(("alias" if alias else "value", found.index(spec.value)))
    return values, aliases, tuple(leaves)


def _write_backward(
    program: Program,
    order: Order,
    emitter: Emitter,
    departures: Departures,
    marks: Marks,
    staged: bool,
) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """Emit the backward steps, with gradients pushed, or named, where they are due.

    Returns for each stage its gradients, the execution after which it ends, and the sharded units
    that are done with after it.
    """
    pushed: list[list[int]] = [[]]
    executions: list[int] = []
    ran = sum(step.op >= 0 for step in order.forward)  # the next one: the boundary
    last = max(departures.ends, default=-1)
    entered: set[int] = set()

    def enter(unit: int) -> None:
        if unit >= 0 and unit not in entered:
            entered.add(unit)
            emitter.line(f"yield {unit}")

    for place in range(-1, len(order.backward)):
        if place >= 0:
            for unit in marks.enter_again.get(place, ()):
                enter(unit)
            emitter.step(order.backward[place])
            ran += order.backward[place].op >= 0
        for g in departures.due.get(place, ()):
            enter(departures.unit_of.get(g, -1))
            value = program.gradients[g].value
            assert value is not None
            emitter.ensure(value)
            made = emitter.name(value)
            if g in departures.cloned and not emitter.dead(value):
                made = f"{emitter.clone}({made})"
            emitter.line(f"push({made})" if staged else f"g{g} = {made}")
            if g not in departures.cloned:
                emitter.forget(emitter.key(value))
            pushed[-1].append(g)
        if place in departures.ends and place != last:
            emitter.line("yield")
            pushed.append([])
            executions.append(ran)
    ends = sorted(departures.ends - {last})
    until = dict(marks.last)
    for g, unit in departures.unit_of.items():
        until[unit] = max(until.get(unit, -1), departures.final[g])
    done: list[list[int]] = [[] for _ in pushed]
    for unit, place in sorted(until.items(), reverse=True):
        done[bisect_left(ends, place)].append(unit)
    return tuple(map(tuple, pushed)), (*executions, ran), tuple(map(tuple, done))
