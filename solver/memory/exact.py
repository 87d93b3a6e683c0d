"""The shortest buffer, by constraint programming: rectangles of time and offset do not overlap."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ..clauses import solve_until
from .pack import padded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..control import Control
    from .blocks import Block


def pack_exactly(
    blocks: Sequence[Block],
    alignment: int,
    start: Sequence[int],
    *,
    lower_bound: int,
    control: Control,
    seed: int,
    threads: int,
) -> tuple[list[int], int]:
    """Offsets no worse than `start`, and a lower bound on the buffer's bytes.

    Parameters
    ----------
    start
        Offsets that work.
    lower_bound
        Bytes that are needed in any case.
    control
        When to stop; the best offsets so far are returned then.
    """
    size = [padded(block, alignment) // alignment for block in blocks]
    least = -(-lower_bound // alignment)
    top = max((s // alignment + n for s, n in zip(start, size, strict=True)), default=0)
    if top <= least:
        return list(start), lower_bound
    # Most steps fit into what is live at their peak: asked for that alone, the solver is quicker.
    rows = [offset // alignment for offset in start]
    for limit, part in ((least, control.part(0.5)), (top, control.part())):
        found, bound = _search(blocks, size, rows, least, limit, part, seed, threads)
        if found is not None:
            return [offset * alignment for offset in found], max(lower_bound, bound * alignment)
        least = max(least, min(bound, top))
    return list(start), max(lower_bound, least * alignment)


def _search(
    blocks: Sequence[Block],
    size: Sequence[int],
    hint: Sequence[int],
    least: int,
    limit: int,
    control: Control,
    seed: int,
    threads: int,
) -> tuple[list[int] | None, int]:
    """Offsets in a buffer of `least` to `limit` rows, if found, and a bound on its rows."""
    from ortools.sat.python import cp_model

    if limit < least:
        return None, least
    model = cp_model.CpModel()
    height = model.new_int_var(least, limit, "height")
    times, places, offsets = [], [], []
    for block, rows, begin in zip(blocks, size, hint, strict=True):
        offset = model.new_int_var(0, limit - rows, "")
        span = block.last - block.first + 1
        times.append(model.new_fixed_size_interval_var(block.first, span, ""))
        places.append(model.new_fixed_size_interval_var(offset, rows, ""))
        model.add(offset + rows <= height)
        model.add_hint(offset, begin)
        offsets.append(offset)
    model.add_no_overlap_2d(times, places)
    model.minimize(height)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = max(0.01, control.remaining)
    solver.parameters.num_workers = max(1, threads)
    solver.parameters.random_seed = seed % 2**31
    status = solve_until(solver, model, control)
    if status == int(cp_model.INFEASIBLE):
        return None, limit + 1
    bound = max(least, math.ceil(solver.best_objective_bound - 1e-6))
    if status not in (int(cp_model.OPTIMAL), int(cp_model.FEASIBLE)):
        return None, min(bound, limit)
    return [solver.value(offset) for offset in offsets], bound
