"""A bound on the smallest budget in any order: the inputs of an op must come together.

When op v runs, all it reads is in memory. Of the runs that made those tensors, look at the last
one, of op p: while p runs, the other tensors that v reads are in memory already, and what p reads
and makes is, too. So were, before p ran, the tensors of v's that p does not make, together with
what p reads; and so on backwards. This is the reverse of a pebble game (Sethi 1975) in which each
state is a set of tensors that are in memory at once. Which op was the last is not known: the bound
is the least, over all ways back to nothing, of the most bytes on the way. It holds for every
schedule, in any order and with any recomputation. The ways are explored cheapest first; cut short,
the cheapest one that is left open still gives a bound.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from .bits import members

if TYPE_CHECKING:
    from .control import Control
    from .graph import Graph

FIRST_STEPS = 30  # of every op
STEPS = 2_000  # of the most promising op at a time
MOST_STEPS = 200_000


def pebble_bound(graph: Graph, control: Control, *, enough: int) -> int:
    """Bytes, resident ones included, that no schedule can do without.

    Parameters
    ----------
    control
        Ends the search; the bound holds at any time.
    enough
        Bytes that a schedule needs which is known: nothing above can be proven.
    """
    game = _Game(graph)
    room = enough - graph.resident_bytes
    order = np.argsort(-game.own, kind="stable").tolist()
    searches: list[_Search] = []
    best = int(graph.arrays.size[graph.arrays.output != 0].sum())  # at the end
    for op in order:
        if control.over:
            break
        search = _Search(game, op)
        search.run(FIRST_STEPS, control)
        best = max(best, search.bound)
        searches.append(search)
    steps = 0
    while best < room and steps < MOST_STEPS and not control.over:
        open_ones = [search for search in searches if not search.closed]
        if not open_ones:
            break
        search = max(open_ones, key=lambda one: one.bound)
        search.run(STEPS, control)
        steps += STEPS
        best = max(best, search.bound)
    return min(enough, graph.resident_bytes + best)


class _Game:
    """Sets as bits: per op what it reads and makes (residents left out), and outputs before it."""

    def __init__(self, graph: Graph) -> None:
        arrays = graph.arrays
        self.size = arrays.size.tolist()
        self.producer = arrays.producer.tolist()
        count = len(graph.ops)
        self.reads: list[int] = []
        self.makes: list[int] = []
        self.outputs: list[int] = []  # of the graph, made by the op or by what it depends on
        self.work = np.minimum(arrays.workspace, arrays.rerun_workspace).tolist()
        self.credit = arrays.credit.tolist()
        self.overwrites = arrays.overwrites.tolist()
        for op in range(count):
            # The first run, or a later one without the state that it puts back: a relaxation.
            inputs, outputs = arrays.first_inputs(op).tolist(), arrays.made(op).tolist()
            inputs = [t for t in inputs if self.producer[t] >= 0]
            self.reads.append(sum(1 << t for t in set(inputs)))
            self.makes.append(sum(1 << t for t in outputs))
            stays = sum(1 << t for t in outputs if arrays.output[t])
            for p in {self.producer[t] for t in arrays.inputs(op).tolist()}:
                stays |= self.outputs[p]
            self.outputs.append(stays)
        own = [self.bytes(self.live(op, self.reads[op])) for op in range(count)]
        # The first run of the op that the search begins with is one that happens.
        self.own = np.array(own, dtype=np.int64) + arrays.workspace - arrays.credit

    def live(self, op: int, state: int) -> int:
        """What is in memory while `op` runs and `state` is there before or after it."""
        return state | self.reads[op] | self.makes[op] | self.outputs[op]

    def bytes(self, state: int) -> int:
        """Bytes of a set."""
        return sum(self.size[t] for t in members(state))

    def kept(self, state: int) -> int:
        """Outputs of the graph that are there once everything in `state` is."""
        result = 0
        for t in members(state):
            result |= self.outputs[self.producer[t]]
        return result


@dataclass
class _Search:
    """The ways back from one op; `bound`: what it needs at least."""

    game: _Game
    op: int
    bound: int = 0
    closed: bool = False
    _heap: list[tuple[int, int, int]] = field(default_factory=list)
    _least: dict[int, int] = field(default_factory=dict)  # most bytes on the best way to a state

    def __post_init__(self) -> None:
        """Begin with what the op reads."""
        self.bound = int(self.game.own[self.op])
        self._push(self.bound, self.game.reads[self.op])

    def run(self, steps: int, control: Control) -> None:
        """Expand so many states, the cheapest first."""
        for _ in range(steps):
            if not self._heap or control.over:
                break
            most, _, state = heapq.heappop(self._heap)
            if most > self._least[state]:
                continue  # a cheaper way there was found later, and taken
            self.bound = max(self.bound, most)
            if not state:
                self.closed = True
                return
            self._expand(most, state)
        if self._heap:
            self.bound = max(self.bound, self._heap[0][0])

    def _expand(self, most: int, state: int) -> None:
        game = self.game
        kept = game.kept(state)
        for p in {game.producer[t] for t in members(state)}:
            # Outputs that p makes itself are in `live`; those after it were made before the rest.
            live = game.live(p, state) | kept
            before = (state & ~game.makes[p]) | game.reads[p]
            during = game.bytes(live) + game.work[p]
            # What p may overwrite is there afterwards if it is in the state.
            if game.credit[p] and not state >> game.overwrites[p] & 1:
                during -= game.credit[p]
            self._push(max(most, during), before)

    def _push(self, most: int, state: int) -> None:
        if most < self._least.get(state, most + 1):
            self._least[state] = most
            heapq.heappush(self._heap, (most, state.bit_count(), state))
