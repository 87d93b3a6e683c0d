"""Dynamic tensor rematerialization, simulated online: DTR, Kirisame et al. 2021 (arXiv 2006.09616).

The base order runs op by op under the budget. When an op does not fit, tensors in memory are
evicted until it does, each time the one with the smallest h; when an op reads an evicted tensor,
that one is made again first, recursively.

    h_DTR(t)    = (c(t) + c(e*(t))) / (m(t) s(t))
    h_DTR^eq(t) = (c(t) + c(e~(t))) / (m(t) s(t))
    h_LRU(t)    = 1 / s(t)

c: time of the op that makes t; m: bytes; s: time since the last use; e*: evicted tensors that would
have to be made again for t, or that would need t (their section 4.1); e~: the same by connected
components of evicted tensors, kept in a union-find where making a tensor again takes its cost out
of its component without splitting it (appendix C.2). A tensor is evicted when the program's last
reference to it goes (their eager eviction), at its last use in base order.

The schedule is what the simulation ran. Its exact peak is at most the budget: a schedule frees a
tensor no later than DTR evicts it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from ..realise import Tables
from .base import Candidate, base_order, choose, evaluate
from .components import Components, Exact, Neighbourhood, Nothing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..control import Control
    from ..graph import Graph
    from ..schedule import Schedule

Rule = Literal["h_DTR", "h_DTR_eq", "h_LRU"]
SLOWEST = 20  # times the step without recomputation: given up as thrashing
DEEPEST = 900  # of recursive rematerialization
BISECTIONS = 10


def dtr(graph: Graph, budget_bytes: int | None, control: Control | None = None) -> Schedule | None:
    """DTR with h_DTR and exact evicted neighbourhoods."""
    return _plan(graph, budget_bytes, control, "h_DTR")


def dtr_eq(
    graph: Graph, budget_bytes: int | None, control: Control | None = None
) -> Schedule | None:
    """DTR with h_DTR^eq, the heuristic of its prototype in PyTorch."""
    return _plan(graph, budget_bytes, control, "h_DTR_eq")


def lru(graph: Graph, budget_bytes: int | None, control: Control | None = None) -> Schedule | None:
    """Eviction of the least recently used tensor."""
    return _plan(graph, budget_bytes, control, "h_LRU")


def _plan(
    graph: Graph, budget_bytes: int | None, control: Control | None, rule: Rule
) -> Schedule | None:
    return choose(_candidates(graph, budget_bytes, rule, control), budget_bytes, control)


def _candidates(
    graph: Graph, budget_bytes: int | None, rule: Rule, control: Control | None
) -> Iterator[Candidate]:
    tables = Tables.of(graph)
    base = base_order(graph, tables)
    yield base
    if budget_bytes is not None and base.peak_bytes <= budget_bytes:
        return
    found = None if budget_bytes is None else _at(graph, tables, budget_bytes, rule, control)
    if found is not None:
        yield found
        return
    # Out of memory there: the smallest budget that it can live with.
    low, high = budget_bytes or graph.resident_bytes, base.peak_bytes
    for _ in range(BISECTIONS):
        middle = (low + high) // 2
        found = _at(graph, tables, middle, rule, control)
        if found is None:
            low = middle
        else:
            high = middle
            yield found


def _at(
    graph: Graph, tables: Tables, budget_bytes: int, rule: Rule, control: Control | None
) -> Candidate | None:
    computes = Simulator(graph, tables, budget_bytes, rule, control).run()
    if computes is None:
        return None
    return evaluate(graph, tables, np.array(computes, dtype=np.int64))


class Simulator:
    """One run of the base order.

    Parameters
    ----------
    budget_bytes
        Resident bytes included.
    rule
        The eviction heuristic.
    control
        Ends the run as if it were out of memory.
    """

    def __init__(
        self,
        graph: Graph,
        tables: Tables,
        budget_bytes: int,
        rule: Rule,
        control: Control | None = None,
    ) -> None:
        self.control = control
        arrays = graph.arrays
        self.graph, self.tables = graph, tables
        self.size = arrays.size
        self.time = arrays.time
        self.room = budget_bytes - graph.resident_bytes
        self.cost = np.zeros(len(graph.tensors))
        made = arrays.producer >= 0
        self.cost[made] = np.maximum(arrays.time[arrays.producer[made]], 1)
        fixed = np.array([not op.recompute for op in graph.ops], dtype=np.bool_)
        self.evictable = (arrays.output == 0) & made & (arrays.size > 0)
        self.evictable[made] &= ~fixed[arrays.producer[made]]
        self.here = np.zeros(len(graph.tensors), dtype=np.bool_)
        self.pinned = np.zeros(len(graph.tensors), dtype=np.int64)
        self.used = np.zeros(len(graph.tensors))
        self.references = np.diff(arrays.use_ptr).astype(np.int64)
        self.ran = np.zeros(len(graph.ops), dtype=np.bool_)
        self.live = 0
        self.clock = 0.0
        self.limit = SLOWEST * float(arrays.time.sum()) + 1.0
        self.computes: list[int] = []
        self.aged = rule != "h_LRU"
        kinds: dict[str, type[Neighbourhood]] = {
            "h_DTR": Exact, "h_DTR_eq": Components, "h_LRU": Nothing,
        }  # fmt: skip
        self.evicted = kinds[rule](graph, self.cost)

    def run(self) -> list[int] | None:
        """Executions in order; None out of memory, or when nothing but recomputation happens."""
        for op in range(len(self.graph.ops)):
            if not self._execute(op, 0):
                return None
            for t in self.tables.inputs[op]:
                self._release(t)
            for t in self.tables.outputs[op]:
                if self.references[t] == 0 and self.evictable[t]:
                    self._evict(t)
        return self.computes

    def _release(self, t: int) -> None:
        self.references[t] -= 1
        if self.references[t] == 0 and self.here[t] and self.evictable[t]:
            self._evict(t)

    def _execute(self, op: int, depth: int) -> bool:
        """Run an op, its missing inputs first; False out of memory or time."""
        if self.control is not None and self.control.over:
            return False
        if depth > DEEPEST or self.clock > self.limit:
            return False
        read, made = self.tables.inputs[op], self.tables.outputs[op]
        self.pinned[read] += 1
        for t in read:
            producer = self.tables.producer[t]
            if not self.here[t] and not self._execute(producer, depth + 1):
                return False
        arrays = self.graph.arrays
        workspace = int(arrays.rerun_workspace[op] if self.ran[op] else arrays.workspace[op])
        # A second copy of what is still here lives for the time of the op.
        if not self._make_room(int(self.size[made].sum()) + workspace):
            return False
        self.computes.append(op)
        self.ran[op] = True
        self.clock += float(max(1, self.time[op]))
        for t in made:
            if not self.here[t]:
                self.here[t] = True
                self.live += int(self.size[t])
                self.evicted.remade(t)
        self.used[read] = self.clock
        self.used[made] = self.clock
        self.pinned[read] -= 1
        return True

    def _make_room(self, needed: int) -> bool:
        while self.live + needed > self.room:
            candidates = np.flatnonzero(self.here & self.evictable & (self.pinned == 0))
            if not len(candidates):
                return False
            stale = self.clock - self.used[candidates] + 1.0
            if self.aged:
                cost = self.cost[candidates] + self.evicted.costs(candidates)
                h = cost / (self.size[candidates] * stale)
            else:
                h = 1.0 / stale
            self._evict(int(candidates[np.argmin(h)]))
        return True

    def _evict(self, t: int) -> None:
        self.here[t] = False
        self.live -= int(self.size[t])
        self.evicted.evicted(t)
