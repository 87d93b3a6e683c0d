"""Techniques of method `auto` as switches, so that a study can leave each one out.

All are on by default. Users have no reason to turn one off; results stay valid in any case.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Techniques:
    """What the method uses beside its integer programs.

    Attributes
    ----------
    chain_cuts
        Cuts that say where a needed tensor can come from, in linear programs before each integer
        program.
    interior_rows
        Memory rows inside coarse stages.
    lazy_rows
        Memory rows inside exact stages are made where they bind, instead of all of them.
    fixing
        Columns whose reduced cost is above the gap are fixed.
    cutoff
        Integer programs look only for what is better than the incumbent.
    mip_start
        The incumbent as a complete solution, where there is no cutoff.
    rough
        Early integer programs are solved only as far as their gap matters.
    long_runs
        An integer program that takes long goes on beside the rounds, where there are two threads.
    several
        Several slots are refined in a round.
    merge
        Stages that turned out slack are merged again.
    windows
        Large neighbourhood search by integer programs around the incumbent.
    polish
        Local search from every schedule that a relaxation leads to.
    sequences
        The search over execution sequences, in any order.
    blocks
        Repeated blocks solved once and composed, as a start.
    """

    chain_cuts: bool = True
    interior_rows: bool = True
    lazy_rows: bool = True
    fixing: bool = True
    cutoff: bool = True
    mip_start: bool = True
    rough: bool = True
    long_runs: bool = True
    several: bool = True
    merge: bool = True
    windows: bool = True
    polish: bool = True
    sequences: bool = True
    blocks: bool = True


EVERYTHING = Techniques()
