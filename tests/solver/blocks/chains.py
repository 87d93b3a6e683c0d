"""What the tests of blocks share: a solved chain and what every memory makes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowtide.solver.blocks.chain import Solution, solve_chain, tables_of
from lowtide.solver.blocks.classes import stretches
from lowtide.solver.blocks.plan import Chain, find_chains
from lowtide.solver.blocks.unroll import unroll
from lowtide.solver.control import Control
from lowtide.solver.schedule import Schedule
from lowtide.solver.simulate import Simulation, simulate

if TYPE_CHECKING:
    import numpy as np

    from lowtide.solver.graph import Graph


class Looks(Control):
    """A clock that is over after so many looks at it."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self.left = looks

    @property
    def over(self) -> bool:
        """True from the last look on."""
        self.left -= 1
        return self.left <= 0


def solved(graph: Graph, slot: float, slots: int) -> tuple[Chain, Solution]:
    """The finest chain of a graph, with the dynamic program filled in."""
    chain = next(iter(find_chains(graph, Control())))
    number, firsts = stretches(chain.sequence)
    tables = tables_of(chain.blocks, chain.options, chain.sequence)
    solution = solve_chain(tables, number, firsts, slot, slots, Control())
    assert solution is not None
    return chain, solution


def realised(graph: Graph, chain: Chain, solution: Solution, memory: int) -> Simulation:
    """Simulation of the schedule that the dynamic program has for so many slots."""
    computes = unroll(
        solution, memory, chain.sequence, chain.starts, chain.blocks, chain.options, chain.cuts
    )
    return simulate(graph, Schedule.from_computes(graph, computes))


def whole_values(solution: Solution) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Recomputation of the whole chain per number of slots."""
    row = int(solution.number[0, -1])
    values: np.ndarray[tuple[int], np.dtype[np.float64]] = solution.value[row]
    return values
