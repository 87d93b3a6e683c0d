"""Checkpointing as people write it by hand, as a plan: segments, mirror counts, bytes, depth."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from .assemble import Origin, assemble
from .baselines.base import both_phases, narrow_positions
from .baselines.chen import (
    by_bytes,
    by_modules,
    cheap_mirrors,
    equal_segments,
    mirrored,
    segmented,
)
from .baselines.log_n import recursive
from .errors import InfeasibleError, InputError
from .schedule import Schedule
from .simulate import simulate
from .units import format_bytes, parse_budget

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from .baselines.base import Candidate
    from .graph import Graph, Op
    from .plan import Plan


def checkpoint(
    graph: Graph,
    *,
    segments: int | Sequence[str] | Callable[[Op], Hashable | None] | None = None,
    mirror: str | Callable[[Op], int] | None = None,
    border_bytes: int | None = None,
    depth: int | None = None,
    branches: int = 1,
    boundary: Callable[[Op], bool] | None = None,
    budget: str | int | None = None,
) -> Plan:
    """A plan by the rules of Chen et al. 2016; exactly one of the first four says which.

    Parameters
    ----------
    graph
        A training step.
    segments
        Algorithm 1. Module names (each module is a segment, what is outside is kept), a function
        that gives the segment of an op (None: kept), or a number of equal segments, as
        `torch.utils.checkpoint.checkpoint_sequential` takes it.
    mirror
        Algorithm 2. A function that gives the mirror count of a forward op, or `cheap`: drop the
        results of normalisations, activations, dropout and pooling.
    border_bytes
        Algorithm 3 for this B: a border at the first candidate once so many bytes were made.
    depth, branches
        Section 4.4: recursion so many levels deep with so many borders a level.
    boundary
        With `border_bytes` or `depth`: whether a border may lie right after an op. None: anywhere
        (`border_bytes`), where fewest bytes cross (`depth`).
    budget
        What the plan has to fit, as `solve` takes it; None: whatever it takes.

    Raises
    ------
    InputError
        If not exactly one rule is given, or it fits no op of the graph.
    InfeasibleError
        If the plan does not fit the budget.
    """
    start = time.monotonic()
    rules = {"segments": segments, "mirror": mirror, "border_bytes": border_bytes, "depth": depth}
    given = [name for name, value in rules.items() if value is not None]
    if len(given) != 1:
        raise InputError(f"give exactly one of {', '.join(rules)}, not {given or 'none'}")
    if branches != 1 and depth is None:
        raise InputError(f"branches are of a recursion: give depth, not {given[0]}")
    if segments is not None:
        found = _by_segments(graph, segments)
    elif mirror is not None:
        if isinstance(mirror, str) and mirror != "cheap":
            raise InputError(f"no mirror counts {mirror!r}: give 'cheap' or a function of an op")
        found = mirrored(graph, cheap_mirrors if isinstance(mirror, str) else mirror)
    elif border_bytes is not None:
        if border_bytes < 0:
            raise InputError(f"border_bytes must be at least 0, not {border_bytes}")
        found = by_bytes(graph, float(border_bytes), boundary)
    else:
        assert depth is not None
        found = _by_depth(graph, depth, branches, boundary)
    everything = simulate(graph, Schedule.keep_everything(graph))
    budget_bytes = found.peak_bytes
    if budget is not None:
        budget_bytes = parse_budget(
            budget, resident_bytes=graph.resident_bytes, peak_bytes=everything.peak_bytes
        )
    if found.peak_bytes > budget_bytes:
        raise InfeasibleError(
            f"the plan by {given[0]} needs {format_bytes(found.peak_bytes)} "
            f"({found.peak_bytes} B), more than the budget of {format_bytes(budget_bytes)} "
            f"({budget_bytes} B); try method auto",
            smallest_bytes=found.peak_bytes,
        )
    origin = Origin(f"checkpoint:{given[0]}", 0, 1, time.monotonic() - start)
    return assemble(graph, budget_bytes, found.computes.tolist(), origin)


def _by_segments(
    graph: Graph, segments: int | Sequence[str] | Callable[[Op], Hashable | None]
) -> Candidate:
    if isinstance(segments, int):
        return equal_segments(graph, segments)
    if callable(segments):
        return segmented(graph, segments)
    names = [segments] if isinstance(segments, str) else list(segments)
    if not names or not all(name.strip() for name in names):
        raise InputError(
            f"no segment is named in {segments!r}: give a number, or module names, none blank"
        )
    modules = {op.module for op in graph.ops[: both_phases(graph).boundary]}
    for name in names:
        if not any(m == name or m.startswith(f"{name}.") for m in modules):
            raise InputError(
                f"no forward op of {graph.name!r} is in a module {name!r}: names are those of "
                "named_modules()"
            )
    return segmented(graph, by_modules(names))


def _by_depth(
    graph: Graph, depth: int, branches: int, boundary: Callable[[Op], bool] | None
) -> Candidate:
    if depth < 1 or branches < 1:
        raise InputError(f"depth and branches must be at least 1, not {depth} and {branches}")
    tables = both_phases(graph)
    if boundary is None:
        positions = narrow_positions(graph, tables)
    else:
        ops = graph.ops[: tables.boundary - 1]
        positions = [i + 1 for i, op in enumerate(ops) if boundary(op)]
    return recursive(graph, tables, positions, branches, depth)[0]
