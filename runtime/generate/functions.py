"""The text of the generated functions around their statements."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .emitter import Emitter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...frontends.torch.program import Program


def forward_source(emitter: Emitter, lines: Sequence[str], values: Sequence[int]) -> list[str]:
    """The function of forward, which returns outputs and what backward needs."""
    out = ["def forward(inputs):"]
    if emitter.inputs:
        out.append(f"    {targets_of(emitter.inputs)} = inputs")
    if emitter.arena is not None:
        new = emitter.namespace.bind(emitter.arena.new, "new_arena")
        out.append(f"    arena = {new}()")
        out.extend(_arena_views(emitter, lines))
    out.extend(f"    {line}" for line in lines)
    outputs = "".join(f"v{value}, " for value in values)
    saved = ", ".join(_saved_names(emitter))
    out.append(f"    return ({outputs}), [{saved}]")
    return out


def backward_source(
    emitter: Emitter, lines: Sequence[str], staged: bool, *, seeded: bool
) -> list[str]:
    """The function of backward; a generator function if it is staged."""
    tangents = "".join(f", v{value}" for value in emitter.tangents)
    tangents += ", seeds" * seeded
    out = [f"def backward(saved{', push' if staged else ''}{tangents}):"]
    names = _saved_names(emitter)
    if names:
        out.append(
            f"    {names[0]}, = saved" if len(names) == 1 else f"    {', '.join(names)} = saved"
        )
        out.append("    saved.clear()")
    out.extend(_arena_views(emitter, lines))
    out.extend(f"    {line}" for line in lines)
    if staged and "yield" not in lines:
        out += ["    return", "    yield"]
    return out


def _saved_names(emitter: Emitter) -> list[str]:
    """What forward hands to backward, the arena last."""
    return [f"v{v}" for v in emitter.carried] + ["arena"] * (emitter.arena is not None)


def _arena_views(emitter: Emitter, lines: Sequence[str]) -> list[str]:
    """The arena as each data type in which `lines` use it."""
    if emitter.arena is None:
        return []
    view = emitter.namespace.bind(torch.ops.aten.view.dtype._op, "view_dtype")
    found = []
    for dtype in emitter.arena.dtypes:
        name = f"arena_{str(dtype).removeprefix('torch.')}"
        if any(f"({name}, " in line for line in lines):
            found.append(f"    {name} = {view}(arena, {emitter.namespace.bind(dtype, 'dtype')})")
    return found


def overwritten_places(emitter: Emitter) -> tuple[int, ...]:
    """Places in what is handed over of values whose memory backward may use again."""
    arena = emitter.arena
    placed = frozenset[int]() if arena is None else arena.tensors
    places = [
        place
        for place, v in enumerate(emitter.carried)
        if emitter.key(v) in emitter.overwritten | placed
    ]
    return (*places, *([] if arena is None else [len(emitter.carried)]))


def alias_source(program: Program, emitter: Emitter, aliases: Sequence[int]) -> list[str]:
    """The function of outputs that are or view an input."""
    views = Emitter(program, emitter.namespace, shorten=False)
    for value in aliases:
        views.ensure(value)
    out = ["def alias_outputs(inputs):"]
    if views.inputs:
        out.append(f"    {targets_of(views.inputs)} = inputs")
    out.extend(f"    {line}" for line in views.lines)
    out.append(f"    return ({''.join(f'v{value}, ' for value in aliases)})")
    return out


def targets_of(values: Sequence[int]) -> str:
    """Values as the targets of an assignment that unpacks."""
    return f"v{values[0]}," if len(values) == 1 else ", ".join(f"v{value}" for value in values)
