"""Which calls run before the boundary to the backward, which after, and which not at all."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ...solver.errors import CaptureError
from .rng import draws

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .values import Line


def split(
    lines: list[Line], forward: list[int], tangents: dict[int, int], gradients: dict[int, int]
) -> list[Line]:
    """Drop dead lines and decide the phase of the others; forward lines come first.

    A line that depends on a tangent is a backward one. Of the others, those that a forward result
    needs are forward ones, and the rest are where the tracer met them. A random line is kept even
    if nobody reads it: it moves the generator on.
    """
    producer = {v: line for line in lines for v in line.writes}
    late = set(tangents.values())
    for line in lines:
        if any(v in late for v in line.call.refs()):
            late.update(line.writes)

    def needed(roots: list[int]) -> set[str]:
        found: set[str] = set()
        stack = list(roots)
        while stack:
            line = producer.get(stack.pop())
            if line is not None and line.name not in found:
                found.add(line.name)
                stack.extend(line.call.refs())
        return found

    random = [v for line in lines if draws(line.call) for v in line.writes]
    before = needed(forward)
    checked = [v for line in lines if not line.writes for v in line.call.refs()]
    alive = before | needed([*gradients.values(), *random, *checked])
    kept = []
    for line in lines:
        if line.writes and line.name not in alive:
            continue
        depends = any(v in late for v in line.call.refs())
        if depends and line.name in before:
            raise CaptureError(f"{line.name} is part of the forward but depends on a gradient")
        kept.append(replace(line, backward=depends or (line.backward and line.name not in before)))
    # a forward line may only read forward lines
    early = [line for line in kept if not line.backward]
    pull = needed([v for line in early for v in line.call.refs()])
    kept = [replace(k, backward=k.backward and k.name not in pull) for k in kept]
    return [k for k in kept if not k.backward] + [k for k in kept if k.backward]


def ancestors(lines: list[Line], gradients: Iterable[int]) -> set[str]:
    """Names of the lines that the backward needs, whatever their phase."""
    producer = {v: line for line in lines for v in line.writes}
    stack = [*gradients, *(v for line in lines if line.backward for v in line.call.refs())]
    found: set[str] = set()
    while stack:
        line = producer.get(stack.pop())
        if line is not None and line.name not in found:
            found.add(line.name)
            stack.extend(line.call.refs())
    return found
