"""Rows of the ablation: a graph and a budget, with everything and without each technique."""

from __future__ import annotations

import time
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import msgspec

from experiments.gain.models import graph_of
from experiments.published.cases import instances, path_of
from lowtide.frontends.instances import read_instance
from lowtide.solver.errors import InfeasibleError, NoPlanError
from lowtide.solver.options import Techniques
from lowtide.solver.plan import Stop
from lowtide.solver.solve import solve

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from lowtide.solver.graph import Graph

EVERYTHING = "everything"
Key = tuple[str, str, str, float, int, int]


# What a technique is left out beside: a start is used only where there is no cutoff.
BESIDE = {"mip_start": "cutoff"}


@dataclass(frozen=True)
class Task:
    """A graph (a public instance by the beginning of its name, or a captured model), a budget.

    Attributes
    ----------
    seconds
        Of each solve.
    usual
        Whether it belongs to the selection that takes at most 20 minutes on two free cores.
    only
        The techniques that it is there for; empty: all of them.
    """

    graph: str
    budget: str
    seconds: float = 30.0
    usual: bool = False
    only: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """`graph @ budget`."""
        return f"{self.graph} @ {self.budget}"


TASKS = (
    Task("monet_resnet50_184_ckm", "7GiB", 12.0, usual=True),
    Task("monet_resnet50_184_ckm", "5GiB", 15.0, usual=True),
    Task("monet_un_11_ckm", "6GiB", 15.0, usual=True),
    Task("moccasin_random_layered_n250_", "70%", 10.0, usual=True),
    Task("gpt2", "40%", 12.0, usual=True),
    Task("monet_un_11_ckm", "5GiB", 40.0, usual=True, only=("long_runs", "lazy_rows")),
    Task("monet_mobilenet_v2_272_ckm", "6GiB"),
    Task("moccasin_random_layered_n100_", "80%"),
    Task("dtr_unet_6", "50%"),
    Task("gpt2", "60%"),
    Task("llama", "40%"),
)


class Row(msgspec.Struct, frozen=True):
    """One solve.

    Attributes
    ----------
    graph, graph_hash, budget
        What was solved.
    without
        The technique left out, or `everything` for none.
    time_limit, seed, threads
        Of the solve.
    overhead, gap
        Of the plan; None without one.
    seconds, cpu_seconds
        Of the solve.
    status
        `optimal`, `feasible` or `no plan`.
    """

    graph: str
    graph_hash: str
    budget: str
    without: str
    time_limit: float
    seed: int
    overhead: float | None
    gap: float | None
    seconds: float
    cpu_seconds: float
    status: str
    threads: int = 1

    @property
    def key(self) -> Key:
        """What makes two solves the same."""
        return (
            self.graph_hash, self.budget, self.without, self.time_limit, self.seed, self.threads
        )  # fmt: skip


def techniques() -> tuple[str, ...]:
    """Every switch there is."""
    return tuple(field.name for field in fields(Techniques) if field.type in (bool, "bool"))


def load(task: Task, folder: Path) -> Graph | None:
    """The graph of a task; None where the instance is not in the folder."""
    name = next((name for name in instances(folder) if name.startswith(task.graph)), None)
    if name is not None:
        return read_instance(path_of(folder, name))
    if "_" in task.graph:
        return None
    return graph_of(task.graph)


def measure(
    graph: Graph, task: Task, without: str, *, time_limit: float, seed: int, threads: int
) -> Row:
    """One solve, all techniques on but one."""
    chosen = Techniques()
    if without != EVERYTHING:
        off = {without, BESIDE.get(without, without)}
        chosen = replace(chosen, **dict.fromkeys(off, False))
    begun, cpu = time.monotonic(), time.process_time()
    overhead, gap, status = None, None, "no plan"
    try:
        plan = solve(
            graph, task.budget, time_limit=time_limit, seed=seed, threads=threads, techniques=chosen
        )
    except (InfeasibleError, NoPlanError):
        pass
    else:
        if plan.stopped_by is Stop.INTERRUPTED:
            raise KeyboardInterrupt
        overhead, gap, status = plan.overhead, plan.gap, plan.status.value
    return Row(
        graph.name,
        graph.structure_hash,
        task.budget,
        without,
        time_limit,
        seed,
        overhead,
        gap,
        round(time.monotonic() - begun, 2),
        round(time.process_time() - cpu, 2),
        status,
        threads,
    )


def losses(rows: Sequence[Row]) -> Iterator[tuple[str, list[tuple[Row, Row]]]]:
    """For each technique the pairs of (with it, without it)."""
    known = {(row.graph, row.budget, row.without): row for row in rows}
    for name in dict.fromkeys(row.without for row in rows):
        beside = BESIDE.get(name, EVERYTHING)
        pairs = [
            (known[row.graph, row.budget, beside], row)
            for row in rows
            if row.without == name and (row.graph, row.budget, beside) in known
        ]
        if name != EVERYTHING and pairs:
            yield name, pairs
