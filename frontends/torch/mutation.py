"""Buffers and inputs that the step changes: who may read them, and when.

The program writes the new contents back at the end of the forward, or earlier (see `updates`). An
op that reads the old ones may therefore not run again later, unless it reads a snapshot, or is a
batch norm in training mode, whose running statistics go into nothing but their own update.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from .program import Call, ValueRef
from .rng import arguments
from .values import Line, Values

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .assemble import Wiring

# outputs of a batch norm that hold the new running statistics
NEW_STATISTICS = {
    "aten::_native_batch_norm_legit_functional": (3, 4),
    "aten::_batch_norm_with_update_functional": (4, 5),
    "lowtide::cumulative_batch_norm": (3, 4),
}
_NORM_BACKWARD = {
    "aten::native_batch_norm_backward",
    "aten::batch_norm_backward",
    "aten::cudnn_batch_norm_backward",
    "aten::miopen_batch_norm_backward",
}
_STATISTICS = {"running_mean", "running_var"}


@dataclass
class Separated:
    """Lines in which no op reads a changed storage too late.

    Attributes
    ----------
    lines
        The lines, some with other arguments.
    snapshots
        Line name to (snapshot value, value it copies), to be made just before that line; the key
        "" stands for the end of the forward.
    once
        Names of lines that may run only once.
    """

    lines: list[Line]
    snapshots: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    once: set[str] = field(default_factory=set)


def separate_mutations(
    lines: list[Line], values: Values, wiring: Wiring, needed: set[str]
) -> Separated:
    """Keep reads of changed storages valid under any schedule.

    Parameters
    ----------
    wiring
        Of the joint graph; a value to write back is replaced if it is itself old contents.
    needed
        Names of the lines that the backward depends on.
    """
    mutations = wiring.mutations
    changed = [wiring.sources[i] for i, v in mutations.items() if v != wiring.sources[i]]
    kept = {*wiring.outputs.values(), *wiring.gradients.values()}
    originals = {values.storage[v]: v for v in changed}
    result = Separated([])
    makers = {v: line for line in lines for v in line.writes}
    lines = [without_statistics(line) for line in lines]
    read = {v for line in lines for v in line.call.refs()} | kept
    copies: dict[int, int] = {}

    def on_snapshot(value: int, reader: str) -> int:
        """The same view of the snapshot as `value` is of the original."""
        if value in copies:
            return copies[value]
        if value == originals[values.storage[value]]:
            copy = values.copy_of(value, f"snapshot.{values.name[values.storage[value]]}")
            result.snapshots.setdefault(reader, []).append((copy, value))
            copies[value] = copy
            return copy
        line = makers[value]
        source = next(iter(line.call.refs()))
        base = on_snapshot(source, reader)
        for old in line.writes:
            copies[old] = values.view_of(base, old)
        call = replace(
            remap(line.call, {source: base}),
            outputs=tuple(None if v is None else copies[v] for v in line.call.outputs),
        )
        result.lines.append(replace(line, name=f"{line.name}.snapshot", call=call))
        return copies[value]

    for line in lines:
        stale = {v for v in line.call.refs() if values.storage[v] in originals}
        if line.view or not stale:
            result.lines.append(line)
            continue
        stale -= harmless(line, read)
        if stale and not line.backward and line.name not in needed:
            result.once.add(line.name)
        elif stale:
            reader = "" if line.backward else line.name
            line = replace(
                line, call=remap(line.call, {v: on_snapshot(v, reader) for v in sorted(stale)})
            )
        result.lines.append(line)
    last = max((i for i, line in enumerate(result.lines) if not line.backward), default=-1)
    for index, value in mutations.items():
        storage = values.storage[value]
        if storage in originals and value != originals[storage]:
            copy = values.copy_of(value, f"exchange.{index}")
            call = Call(torch.ops.aten.clone.default, (ValueRef(value),), {}, (copy,), unpack=False)
            line = Line(f"exchange.{index}", call, "", backward=False, view=False)
            last += 1
            result.lines.insert(last, line)
            result.once.add(line.name)
            mutations[index] = copy
    return result


def harmless(line: Line, read: set[int]) -> set[int]:
    """Running statistics that a training batch norm reads for their own update only."""
    op = line.call.target
    if not isinstance(op, torch._ops.OpOverload) or op._schema.name not in NEW_STATISTICS:
        return set()
    given = arguments(line.call)
    if given.get("training", True) is not True:
        return set()
    new = {line.call.outputs[i] for i in NEW_STATISTICS[op._schema.name]}
    if new & read:
        return set()
    found = {a.index for name in _STATISTICS if isinstance(a := given.get(name), ValueRef)}
    others = (a for name, a in given.items() if name not in _STATISTICS)
    return found - {a.index for a in others if isinstance(a, ValueRef)}


def without_statistics(line: Line) -> Line:
    """A batch norm backward without the running statistics, which training mode ignores.

    The trace passes it the updated ones, which would keep them alive for nothing.
    """
    op = line.call.target
    if not isinstance(op, torch._ops.OpOverload) or op._schema.name not in _NORM_BACKWARD:
        return line
    given = arguments(line.call)
    if not given.get("train", given.get("update", True)):
        return line
    names = [a.name for a in op._schema.arguments]
    args = tuple(
        None if name in _STATISTICS else a for name, a in zip(names, line.call.args, strict=False)
    )
    return replace(line, call=replace(line.call, args=args))


def remap(call: Call, new: Mapping[int, int]) -> Call:
    """The call with some of the values that it reads exchanged."""

    def walk(argument: Any) -> Any:
        if isinstance(argument, ValueRef):
            return ValueRef(new.get(argument.index, argument.index))
        if isinstance(argument, (tuple, list)):
            return type(argument)(walk(item) for item in argument)
        if isinstance(argument, dict):
            return {key: walk(item) for key, item in argument.items()}
        return argument

    return replace(call, args=walk(call.args), kwargs=walk(call.kwargs))
