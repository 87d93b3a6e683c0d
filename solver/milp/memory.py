"""Memory rows of the staged program: at the end of coarse stages, and all through exact ones.

Inside an exact stage, liveness needs no products: with c1 < c2 < ... the consumers of d that can
run in the stage, `L[d,q]` says that d lives on after its q-th consumer, so `L[d,q] >= L[d,q+1]`,
`L[d,q] >= R[c_{q+1}]`, and the last one is `S[d,k+1]`; `U` is the running sum of live bytes.
Both are least where S and R are given: `complete` computes them. L is whole wherever S and R are,
and declared so: solvers then find cover cuts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from .problem import INF

if TYPE_CHECKING:
    from ..array_types import Bools, Floats, Ints
    from ..graph import Graph
    from .problem import Builder

MEMORY_SCALE = 1000.0


@dataclass
class Memory:
    """Sizes in the program's unit, and the rows made from them.

    Attributes
    ----------
    room
        The budget without resident bytes.
    size
        Per tensor.
    pinned
        Per op: outputs produced before it; they stay in memory.
    rerun
        Per op: results and workspace of a later run, without what is made only if something reads
        it (saved states of a generator).
    """

    graph: Graph
    free: Bools
    builder: Builder
    unit: float
    room: float
    size: Floats
    pinned: Floats
    rerun: list[float]
    _levels: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    _sums: list[tuple[int, int]] = field(default_factory=list)

    @classmethod
    def of(cls, graph: Graph, free: Bools, builder: Builder, room_bytes: int) -> Memory:
        """For a budget of `room_bytes`, resident bytes not included."""
        arrays = graph.arrays
        unit = max(1, room_bytes) / MEMORY_SCALE
        size = arrays.size / unit
        pinned = np.zeros(len(graph.ops) + 1)
        for op in range(len(graph.ops)):
            made = arrays.outputs(op)
            pinned[op + 1] = pinned[op] + size[made][arrays.output[made] != 0].sum()
        workspace = arrays.rerun_workspace / unit
        rerun = [float(size[arrays.made(op)].sum() + workspace[op]) for op in range(len(graph.ops))]
        # A hair of slack keeps rounding in the solver from cutting off a tight schedule.
        room = MEMORY_SCALE * (1.0 + 1e-9)
        return cls(graph, free, builder, unit, room, size, pinned, rerun)

    def during(self, op: int) -> float:
        """Bytes during base op `op` that no decision changes: reads, results, workspace.

        Outputs of the graph are in `pinned`; other free tensors that are read count nothing, which
        relaxes. An input that the op may overwrite is left out: its bytes are those of the result,
        and they count twice only where it lives on, which is a decision.
        """
        arrays = self.graph.arrays
        read, made = self._reads(op), arrays.made(op)
        own = self.size[read][~self.free[read]].sum() + self.size[made].sum()
        work = arrays.workspace[op] / self.unit
        return float(own + work + self.pinned[op])

    def held(self, op: int) -> set[int]:
        """The tensors that `during` counts for base op `op`."""
        return {*self._reads(op).tolist(), *self.graph.arrays.made(op).tolist()}

    def _reads(self, op: int) -> Ints:
        """What the first run of `op` reads and leaves as it is."""
        arrays = self.graph.arrays
        read = arrays.first_inputs(op)
        left: Ints = read[read != arrays.overwrites[op]]
        return left

    def end_row(self, last: int, following: dict[int, int]) -> None:
        """During the last base op of a stage, all that the next stage is handed is in memory."""
        held = self.held(last)
        terms = [(c, float(self.size[t])) for t, c in following.items() if t not in held]
        self.builder.row(terms, -INF, self.room - self.during(last))

    def exact_rows(
        self,
        base: int,
        carry: dict[int, int],
        recompute: dict[int, int],
        following: dict[int, int],
    ) -> None:
        """Follow the live bytes through the recomputations of a stage and its one base op."""
        arrays, builder = self.graph.arrays, self.builder
        events = sorted(recompute)
        consumers: dict[int, list[int]] = {}
        for op in events:
            for t in arrays.inputs(op).tolist():
                if not self.free[t]:
                    consumers.setdefault(t, []).append(op)
        base_reads = set(arrays.first_inputs(base).tolist())
        overwrites = arrays.overwrites.tolist()
        # What changes once an op has run, and what changes already while it runs: an input that it
        # overwrites counts only if it lives on then, and so does what it makes only if it is read.
        change: dict[int, list[tuple[int, float]]] = {op: [] for op in events}
        early: dict[int, list[tuple[int, float]]] = {op: [] for op in events}
        shift: dict[int, float] = dict.fromkeys(events, 0.0)

        def add(op: int, column: int | None, weight: float, *, at_once: bool = False) -> None:
            if column is not None:
                (early if at_once else change)[op].append((column, weight))

        tensors = set(carry) | {
            t for op in events for t in arrays.outputs(op).tolist() if not self.free[t]
        }
        for t in sorted(tensors):
            producer = int(arrays.producer[t])
            made = producer in recompute
            size = float(self.size[t])
            used = consumers.get(t, [])
            start = carry.get(t)
            if t in base_reads:
                if made:  # in memory from its production, or all along, until the base op
                    shift[producer] += size
                    add(producer, start, -size)
                continue
            # levels[q]: the column that says t lives on after its q-th consumer; None: it does not.
            levels: list[int | None] = []
            for q in range(len(used)):
                first_without_production = q == 0 and not made
                levels.append(start if first_without_production else builder.implied())
            levels.append(following.get(t))
            own: list[tuple[int, tuple[int, ...]]] = []
            for q, op in enumerate(used):
                here, after = levels[q], levels[q + 1]
                if here is None:
                    continue
                builder.row([(here, 1.0), (recompute[op], -1.0)], 0.0, INF)
                if after is not None:
                    builder.row([(here, 1.0), (after, -1.0)], 0.0, INF)
                if here != start:
                    above = (recompute[op],) if after is None else (recompute[op], after)
                    own.append((here, above))
            self._levels += reversed(own)
            if made:
                spare = bool(arrays.spare[t])
                add(producer, levels[0], size, at_once=spare)
                add(producer, start, -size, at_once=spare)
            for q, op in enumerate(used):
                taken = overwrites[op] == t
                add(op, levels[q + 1], size, at_once=taken)
                add(op, levels[q], -size, at_once=taken)
        live = self._running_sum(base, carry, recompute, early, change, shift)
        # The base op: what it reads is in `live`.
        taken = overwrites[base]
        limit = self.room - float(self.size[arrays.made(base)].sum())
        limit -= float(arrays.workspace[base]) / self.unit
        if taken >= 0 and not self.free[taken]:
            limit += float(self.size[taken])
        later = [t for t in (taken, *arrays.outputs(base).tolist()) if t in following]
        again = [
            (following[t], float(self.size[t])) for t in later if t == taken or arrays.spare[t]
        ]
        builder.row([(live, 1.0), *again], -INF, limit)

    def _running_sum(
        self,
        base: int,
        carry: dict[int, int],
        recompute: dict[int, int],
        early: dict[int, list[tuple[int, float]]],
        change: dict[int, list[tuple[int, float]]],
        shift: dict[int, float],
    ) -> int:
        """Rows of the recomputations; returns the column of the live bytes after all of them.

        While an op runs, `early` has happened already. Where it does not run that only lessens
        what counts.
        """
        builder = self.builder
        live = builder.continuous(0.0, self.room)
        pinned = float(self.pinned[base])
        terms = [(column, -float(self.size[t])) for t, column in carry.items()]
        self._sums.append((live, len(builder.row_lower)))
        builder.row([(live, 1.0), *terms], pinned, pinned)
        for op in sorted(recompute):
            during = self.rerun[op]
            if during > 0.0 or early[op]:
                own = [(recompute[op], during)] if during > 0.0 else []
                builder.row([(live, 1.0), *own, *early[op]], -INF, self.room)
            if not early[op] and not change[op] and shift[op] == 0.0:
                continue
            after = builder.continuous(0.0, self.room)
            merged: dict[int, float] = {}
            for column, weight in (*early[op], *change[op]):
                merged[column] = merged.get(column, 0.0) - weight
            row = [(after, 1.0), (live, -1.0), *((c, w) for c, w in merged.items() if w != 0.0)]
            self._sums.append((after, len(builder.row_lower)))
            builder.row(row, shift[op], shift[op])
            live = after
        return live

    def complete(self, values: Floats) -> None:
        """Write the least values of the continuous columns into `values`, S and R being there."""
        builder = self.builder
        for column, above in self._levels:
            values[column] = max(values[c] for c in above)
        for column, row in self._sums:
            part = slice(builder.start[row], builder.start[row + 1])
            index, value = builder.index[part], builder.value[part]
            rest = sum(v * values[c] for c, v in zip(index, value, strict=True) if c != column)
            values[column] = builder.row_lower[row] - rest
