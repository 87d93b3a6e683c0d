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
    import numpy.typing as npt

    from ..graph import Graph
    from .problem import Builder, Floats

    Bools = npt.NDArray[np.bool_]

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
    """

    graph: Graph
    free: Bools
    builder: Builder
    unit: float
    room: float
    size: Floats
    pinned: Floats
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
        # A hair of slack keeps rounding in the solver from cutting off a tight schedule.
        room = MEMORY_SCALE * (1.0 + 1e-9)
        return cls(graph, free, builder, unit, room, size, pinned)

    def during(self, op: int) -> float:
        """Bytes during base op `op` that no decision changes: reads, results, workspace.

        Outputs of the graph are in `pinned`. Two relaxations: other free tensors count nothing,
        and an input that the op may overwrite counts as if it did.
        """
        arrays = self.graph.arrays
        read, made = arrays.first_inputs(op), arrays.made(op)
        own = self.size[read][~self.free[read]].sum() + self.size[made].sum()
        work = arrays.workspace[op] - arrays.credit[op]
        return float(own + work / self.unit + self.pinned[op])

    def end_row(self, last: int, following: dict[int, int]) -> None:
        """During the last base op of a stage, all that the next stage is handed is in memory."""
        arrays = self.graph.arrays
        touched = {*arrays.first_inputs(last).tolist(), *arrays.made(last).tolist()}
        terms = [(c, float(self.size[t])) for t, c in following.items() if t not in touched]
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
        change: dict[int, list[tuple[int, float]]] = {op: [] for op in events}
        shift: dict[int, float] = dict.fromkeys(events, 0.0)

        def add(op: int, column: int | None, constant: float, weight: float) -> None:
            if column is not None:
                change[op].append((column, weight))
            shift[op] += constant * weight

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
                    add(producer, None, 1.0, size)
                    if start is not None:
                        add(producer, start, 0.0, -size)
                continue
            # levels[q] = (column, constant) that says t lives on after its q-th consumer.
            levels: list[tuple[int | None, float]] = []
            for q in range(len(used)):
                first_without_production = q == 0 and not made
                column = start if first_without_production else builder.implied()
                levels.append((column, 0.0))
            levels.append((following.get(t), 0.0))
            own: list[tuple[int, tuple[int, ...]]] = []
            for q, op in enumerate(used):
                here, after = levels[q][0], levels[q + 1][0]
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
                add(producer, levels[0][0], levels[0][1], size)
                if start is not None:
                    add(producer, start, 0.0, -size)
            for q, op in enumerate(used):
                add(op, levels[q + 1][0], levels[q + 1][1], size)
                add(op, levels[q][0], levels[q][1], -size)
        self._running_sum(base, carry, recompute, change, shift)

    def _running_sum(
        self,
        base: int,
        carry: dict[int, int],
        recompute: dict[int, int],
        change: dict[int, list[tuple[int, float]]],
        shift: dict[int, float],
    ) -> None:
        builder, arrays = self.builder, self.graph.arrays
        live = builder.continuous(0.0, self.room)
        pinned = float(self.pinned[base])
        terms = [(column, -float(self.size[t])) for t, column in carry.items()]
        self._sums.append((live, len(builder.row_lower)))
        builder.row([(live, 1.0), *terms], pinned, pinned)
        for op in sorted(recompute):
            made = float(self.size[arrays.outputs(op)].sum())
            work = arrays.rerun_workspace[op] - arrays.credit[op]
            during = made + float(work) / self.unit
            if during > 0.0:
                builder.row([(live, 1.0), (recompute[op], during)], -INF, self.room)
            if not change[op] and shift[op] == 0.0:
                continue
            after = builder.continuous(0.0, self.room)
            merged: dict[int, float] = {}
            for column, weight in change[op]:
                merged[column] = merged.get(column, 0.0) - weight
            row = [(after, 1.0), (live, -1.0), *((c, w) for c, w in merged.items() if w != 0.0)]
            self._sums.append((after, len(builder.row_lower)))
            builder.row(row, shift[op], shift[op])
            live = after
        made = float(self.size[arrays.made(base)].sum())
        work = arrays.workspace[base] - arrays.credit[base]
        limit = self.room - made - float(work) / self.unit
        builder.row([(live, 1.0)], -INF, limit)

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
