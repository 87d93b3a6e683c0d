"""Memory rows inside exact stages, made where they bind.

Followed in full (`Memory.exact_rows`), the recomputations of one exact stage cost as many rows as
several coarse stages, and few of them matter: memory binds at one or two recomputations. Here the
row of recomputation p before base op b,

    sum m_d L[d] + (results and workspace of p) R[p] <= budget,

is made when a solution breaks it. L[d] says that d, in memory when p begins, lives on: it is S of
the next stage or R of the one op that still reads d, where only one of the two is left, and a
column above all of them else. An input that p overwrites need not live any more when p begins, and
what p makes only for later reruns of another op is a d like any other. The rows that whole
solutions broke are known to the next round.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from .problem import INF

if TYPE_CHECKING:
    from collections.abc import Collection

    from ..array_types import Floats, Ints
    from ..graph import Graph
    from .memory import Memory
    from .problem import Builder

    Event = tuple[int, int]  # base op, op that runs again before it

TOLERANCE = 1e-3  # of rows scaled to MEMORY_SCALE
WHOLE = 1e-6  # for solutions in whole numbers
PER_STAGE = 4
APART = 3


@dataclass(frozen=True)
class _Span:
    """A tensor may be live at recomputations number begin..end-1: if one of `above` is 1.

    `above` are columns, ordered from the last need to the first; empty: it is live in any case.
    """

    tensor: int
    size: float
    begin: int
    end: int
    above: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class _Stage:
    """The recomputations that are possible in one exact stage, and what they find in memory."""

    base: int
    ops: list[int]
    columns: Ints
    during: Floats
    pinned: float
    spans: list[_Span]
    flat: Ints
    pointer: Ints

    def live(self, values: Floats) -> Floats:
        """Bytes before each recomputation, and its own, at a solution."""
        values = np.append(values, 1.0)  # what column -1 is read as
        change = np.zeros(len(self.ops) + 1)
        if self.spans:
            level = np.maximum.reduceat(values[self.flat], self.pointer)
            weight = level * np.array([span.size for span in self.spans])
            np.add.at(change, [span.begin for span in self.spans], weight)
            np.subtract.at(change, [span.end for span in self.spans], weight)
        result: Floats = np.cumsum(change)[:-1] + self.pinned + self.during * values[self.columns]
        return result


@dataclass
class Events:
    """Rows of the exact stages of one program.

    Attributes
    ----------
    done
        Those that were made.
    """

    graph: Graph
    memory: Memory
    builder: Builder
    done: set[Event] = field(default_factory=set)
    _stages: list[_Stage] = field(default_factory=list)
    _columns: dict[tuple[int, int, int], int] = field(default_factory=dict)
    _levels: list[tuple[int, tuple[int, int]]] = field(default_factory=list)

    def add_stage(
        self,
        base: int,
        carry: dict[int, int],
        recompute: dict[int, int],
        following: dict[int, int],
        known: Collection[Event],
    ) -> None:
        """An exact stage: its last row, and those of `known` that are in it."""
        self.memory.end_row(base, following)
        stage = self._stage(base, carry, recompute, following)
        self._stages.append(stage)
        for at, op in enumerate(stage.ops):
            if (base, op) in known:
                self._row(stage, at)

    def separate(self, values: Floats) -> int:
        """Add the rows that `values` breaks worst, a few per stage; how many were added."""
        added = 0
        for stage in self._stages:
            excess = stage.live(values) - self.memory.room
            here = 0
            while len(excess) and here < PER_STAGE:
                at = int(excess.argmax())
                if excess[at] <= TOLERANCE:
                    break
                excess[max(0, at - APART) : at + APART + 1] = 0.0
                if (stage.base, stage.ops[at]) not in self.done:
                    self._row(stage, at)
                    here += 1
            added += here
        return added

    def broken(self, values: Floats) -> set[Event]:
        """Rows that are still to be made and that a solution in whole numbers breaks."""
        return {
            (stage.base, stage.ops[at])
            for stage in self._stages
            for at in np.flatnonzero(stage.live(values) > self.memory.room + WHOLE).tolist()
        } - self.done

    def complete(self, values: Floats) -> None:
        """Write the least values of the columns made here, S and R being there."""
        for column, above in self._levels:
            values[column] = max(values[c] for c in above)

    def _stage(
        self, base: int, carry: dict[int, int], recompute: dict[int, int], following: dict[int, int]
    ) -> _Stage:
        arrays, memory = self.graph.arrays, self.memory
        ops = sorted(recompute)
        place = {op: at for at, op in enumerate(ops)}
        consumers: dict[int, list[int]] = {}
        for op in ops:
            for t in arrays.inputs(op).tolist():
                consumers.setdefault(t, []).append(op)
        base_reads = set(arrays.first_inputs(base).tolist())
        overwrites = arrays.overwrites.tolist()
        made = {t for op in ops for t in arrays.outputs(op).tolist()}

        def last(op: int, t: int) -> int:
            """The last event at which t must be there because of the run of `op`."""
            return place[op] - int(overwrites[op] == t)  # its bytes are the result's then

        spans: list[_Span] = []
        for t in sorted({*carry, *made}):
            if memory.free[t] or not memory.size[t]:
                continue
            size, start = float(memory.size[t]), carry.get(t)
            maker = place.get(int(arrays.producer[t]), -1)
            # Results are in `during` of their op, but for those that are not made if nobody reads.
            begin = maker + (0 if maker >= 0 and arrays.spare[t] else 1)
            if maker >= 0 and start is not None:  # until it would be made anew
                spans.append(_Span(t, size, 0, begin, (start,)))
            if t in base_reads:
                stays = () if maker >= 0 or start is None else (start,)
                spans.append(_Span(t, size, begin, len(ops), stays))
                continue
            needs = [(len(ops), following[t])] if t in following else []
            needs += [(last(op, t), recompute[op]) for op in reversed(consumers.get(t, []))]
            if maker < 0 and start is not None:  # carried in, and nothing can make it here
                begin = needs[-1][0] + 1 if consumers.get(t) else len(ops)
                spans.append(_Span(t, size, 0, begin, (start,)))
                needs = needs[:-1]
            while needs:
                end = min(needs[-1][0] + 1, len(ops))
                if begin < end:
                    spans.append(_Span(t, size, begin, end, tuple(c for _, c in needs)))
                begin = end
                needs.pop()
        lists = [span.above or (-1,) for span in spans]
        pointer = np.zeros(len(lists), dtype=np.int64)
        np.cumsum([len(above) for above in lists[:-1]], out=pointer[1:])
        return _Stage(
            base=base,
            ops=ops,
            columns=np.array([recompute[op] for op in ops], dtype=np.int64),
            during=np.array([memory.rerun[op] for op in ops], dtype=np.float64),
            pinned=float(memory.pinned[base]),
            spans=spans,
            flat=np.array([c for above in lists for c in above], dtype=np.int64),
            pointer=pointer,
        )

    def _row(self, stage: _Stage, at: int) -> None:
        self.done.add((stage.base, stage.ops[at]))
        terms: dict[int, float] = {int(stage.columns[at]): float(stage.during[at])}
        limit = self.memory.room - stage.pinned
        for span in stage.spans:
            if not span.begin <= at < span.end:
                continue
            if not span.above:
                limit -= span.size
                continue
            column = self._level(stage.base, span.tensor, span.above)
            terms[column] = terms.get(column, 0.0) + span.size
        self.builder.row([(c, w) for c, w in terms.items() if w != 0.0], -INF, limit)

    def _level(self, base: int, tensor: int, above: tuple[int, ...]) -> int:
        """The column that is at least all of `above`; one column for each tail of the needs."""
        if len(above) == 1:
            return above[0]
        key = (base, tensor, len(above))
        if key not in self._columns:
            both = (above[-1], self._level(base, tensor, above[:-1]))
            column = self.builder.implied()
            for c in both:
                self.builder.row([(column, 1.0), (c, -1.0)], 0.0, INF)
            self._columns[key] = column
            self._levels.append((column, both))
        return self._columns[key]
