"""A schedule as a complete solution of a staged program.

Solvers repair partial starts poorly or not at all; a vector of all columns that satisfies every row
is taken as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..array_types import Floats
    from .interior import Interior
    from .staged import StagedProgram

TOLERANCE = 1e-7


def start_values(
    program: StagedProgram, computes: Sequence[int], interior: Interior | None = None
) -> Floats | None:
    """Values of all columns for the schedule that runs the ops of `computes` in this order.

    None if the schedule does not satisfy the program, for example because it leaves the base order.
    """
    values = np.zeros(len(program.builder.cost))
    stage_of = _stage_of(program, computes)
    runs = _decisions(program, computes, stage_of, values)
    program.memory.complete(values)
    if program.events is not None:
        program.events.complete(values)
    if interior is not None:
        interior.complete(values, runs)
    return values if _feasible(program, values) else None


def _stage_of(program: StagedProgram, computes: Sequence[int]) -> list[int]:
    """Per position, its stage: recomputations belong to the stage of the next base op."""
    firsts = np.array([stage.first for stage in program.stages])
    stage_of = [len(firsts) - 1] * len(computes)
    seen: set[int] = set()
    pending = 0
    for position, op in enumerate(computes):
        if op in seen:
            continue
        seen.add(op)
        stage = int(np.searchsorted(firsts, op, side="right")) - 1
        stage_of[pending : position + 1] = [stage] * (position + 1 - pending)
        pending = position + 1
    return stage_of


def _decisions(
    program: StagedProgram, computes: Sequence[int], stage_of: list[int], values: Floats
) -> set[tuple[int, int]]:
    """Write S and R; returns (stage, op) of ops that run again in the stage of their first run."""
    arrays = program.graph.arrays
    home: dict[int, int] = {}
    again: set[tuple[int, int]] = set()
    left = np.bincount(computes, minlength=len(program.graph.ops))
    for op, k in zip(computes, stage_of, strict=True):
        if op not in home:
            home[op] = k
        elif home[op] == k:
            again.add((k, op))
        elif op in program.recompute[k]:
            values[program.recompute[k][op]] = 1.0
    # Walk backwards to find what is live when each stage begins.
    needed = np.zeros(len(program.graph.tensors), dtype=np.bool_)
    for position in range(len(computes) - 1, -1, -1):
        op, k = computes[position], stage_of[position]
        needed[arrays.outputs(op)] = False
        left[op] -= 1
        needed[arrays.inputs(op) if left[op] else arrays.first_inputs(op)] = True
        if position == 0 or stage_of[position - 1] != k:
            for tensor, column in program.carry[k].items():
                if needed[tensor]:
                    values[column] = 1.0
    return again


def _feasible(program: StagedProgram, values: Floats) -> bool:
    problem = program.problem
    if (values < problem.lower - TOLERANCE).any() or (values > problem.upper + TOLERANCE).any():
        return False
    activity = np.add.reduceat(
        np.append(problem.value * values[problem.index], 0.0), problem.start[:-1]
    )
    activity[problem.start[:-1] == problem.start[1:]] = 0.0
    scale = TOLERANCE * np.maximum(1.0, np.abs(activity))
    within = (activity >= problem.row_lower - scale) & (activity <= problem.row_upper + scale)
    return bool(within.all())
