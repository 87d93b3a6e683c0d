"""The partitioner: under torch.compile, a plan decides what is saved and what is recomputed."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch._inductor import config as inductor_config
from torch._inductor.custom_graph_pass import CustomPartitionerFn

from ...frontends.torch.compile.joint import device_of, joint_graph
from ...frontends.torch.compile.layouts import copied_bytes
from ...frontends.torch.compile.private import (
    check_partitioners,
    default_partition,
    let_through,
    merge_equal_nodes,
    own_partition,
)
from ...solver.arguments import checked_arguments
from ...solver.errors import InputError
from ...solver.schedule import Schedule
from ...solver.simulate import simulate
from ...solver.solve import METHODS, solve
from ...solver.units import format_bytes, format_percent, parse_budget
from ..plans.settings import solving
from .emit import modules
from .own import Own, Task, plan_of
from .planned import Planned
from .within import compiling_within

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import TracebackType

    from torch import fx

    from ...solver.graph import Graph
    from ...solver.plan import Plan
    from ..plans.plan_cache import Solving
    from .planners import Planner

_log = logging.getLogger(__name__)


class Partitioner(CustomPartitionerFn):
    """Splits each joint graph of torch.compile by a plan under a memory budget.

    `lowtide.partitioner` makes one. It is a `CustomPartitionerFn` of inductor, for
    `torch._inductor.config.custom_partitioner_fn` or
    `torch.compile(model, options={"custom_partitioner_fn": it})`, and a `partition_fn` for
    `aot_autograd`. As a context manager it sets inductor's configuration meanwhile: models compile
    when they are first called, so the first call must be inside.

    Attributes
    ----------
    planned
        Graph and plan of each joint graph that was split, in the order in which they were
        compiled. What PyTorch takes from its caches is not split again.

    Notes
    -----
    What is guaranteed: every operator computes what it computes without a plan, from the same
    values; operators that draw random numbers, communicate, write into inputs or read what is
    written to run once. Recomputed values are equal to the first ones as far as the compiled
    kernels are deterministic and round alike in both places: a compiler may contract or reorder
    additions in one kernel and not in another, so gradients agree to rounding, not to the bit.

    As a context manager it sees to the peak as `lowtide.backend` does, whose notes say what is
    guaranteed: what inductor compiles meanwhile goes through the same choice of plans. Given as an
    option or to `aot_autograd` it is asked before anything is compiled, once: then the peak is a
    prediction about a program that the compiler still fuses, orders and gives buffers to, and
    `reserve_bytes` leaves room for that.
    """

    def __init__(
        self,
        memory_budget: str | int,
        *,
        time_limit: float = 60.0,
        method: str = "auto",
        seed: int = 0,
        extra_resident_bytes: int = 0,
        reserve_bytes: int = 0,
    ) -> None:
        check_partitioners()
        parse_budget(memory_budget, resident_bytes=1, peak_bytes=2)  # refused now, not when called
        if method not in METHODS:
            raise InputError(f"no method {method!r}: choose one of {', '.join(METHODS)}")
        if not time_limit > 0:
            raise InputError(f"time_limit must be above 0, not {time_limit}")
        self.memory_budget, self.time_limit, self.method = memory_budget, time_limit, method
        self.seed, self.extra_resident_bytes = seed, extra_resident_bytes
        self.reserve_bytes = reserve_bytes
        self.compiled = True  # by inductor, not run operator by operator
        self.planned: list[Planned] = []
        self._planner: Planner | None = None
        self._survey: Callable[[Task], None] | None = None
        self._active = contextlib.ExitStack()

    @let_through()
    def __call__(
        self, gm: fx.GraphModule, joint_inputs: Sequence[object], **kwargs: Any
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        """Forward and backward of a joint graph; called by PyTorch.

        Raises
        ------
        CaptureError
            If the graph cannot be planned: symbolic sizes, unknown higher-order operators.
        InfeasibleError
            If no schedule meets the budget; the smallest budget found is named.
        """
        merge_equal_nodes(gm)
        copies = copied_bytes(gm, device_of(gm.graph)) if self.compiled else 0
        joint = joint_graph(
            gm.graph,
            kwargs["num_fwd_outputs"],
            name=f"compiled graph {len(self.planned)}",
            extra_resident_bytes=self.extra_resident_bytes + copies,
            in_place=self.compiled,
        )
        if joint.boundary == len(joint.roots) - 1:
            kwargs.pop("compiler", None)
            return default_partition(gm, joint_inputs, **kwargs)
        budget = budget_of(joint.graph, self.memory_budget)
        resident = joint.graph.resident_bytes - copies
        if self._survey is not None:
            self._survey(Task(gm, joint_inputs, kwargs, joint, budget, resident))
        choice = (self._planner or self._solved)(joint.graph, budget)
        plan, share = plan_of(choice), choice.share if isinstance(choice, Own) else None
        self.planned.append(
            Planned(joint.graph, plan, budget, resident, len(joint.ends.tangents), share=share)
        )
        _log.info(
            "%s: %d ops, peak %s predicted of %s, %s more time",
            joint.graph.name,
            len(joint.graph.ops),
            format_bytes(plan.peak_bytes),
            format_bytes(plan.budget_bytes),
            format_percent(plan.overhead),
        )
        if share is not None:
            return own_partition(gm, joint_inputs, share, **kwargs)
        return modules(gm, joint, plan.schedule)

    def _solved(self, graph: Graph, budget_bytes: int) -> Plan:
        """A plan for the budget itself."""
        return solve(
            graph,
            max(1, budget_bytes - self.reserve_bytes),
            method=self.method,
            time_limit=self.time_limit,
            seed=self.seed,
        )

    @contextlib.contextmanager
    def planning(
        self, planner: Planner | None, survey: Callable[[Task], None] | None = None
    ) -> Iterator[None]:
        """Meanwhile, plans come from a planner; None: from the solver, for the budget itself.

        Before it is asked, `survey` sees each joint graph; it may raise to end the compilation.
        """
        before = self._planner, self._survey
        self._planner, self._survey = planner, survey
        try:
            yield
        finally:
            self._planner, self._survey = before

    @property
    def settings(self) -> Solving:
        """How plans are solved."""
        return replace(solving(self.time_limit, self.seed), method=self.method)

    @property
    def unlimited(self) -> bool:
        """Whether the budget is whatever the step takes without recomputation."""
        return str(self.memory_budget).strip().lower() == "max"

    def uuid(self) -> str:
        """Key of what this partitioner does, for PyTorch's caches of compiled code."""
        settings = (
            self.memory_budget, self.time_limit, self.method, self.seed, self.extra_resident_bytes,
            self.reserve_bytes,
        )  # fmt: skip
        return f"lowtide {source_digest()} {settings}"

    def __deepcopy__(self, memo: dict[int, object]) -> Partitioner:
        """Itself: inductor copies its configuration, and what is planned must be found here."""
        return self

    def __getstate__(self) -> dict[str, Any]:
        """The settings, for inductor's cache keys: not the plans, nor if it is in force."""
        empty: dict[str, Any] = {
            "planned": [], "_planner": None, "_survey": None, "_active": contextlib.ExitStack(),
        }  # fmt: skip
        return {**self.__dict__, **empty}

    def __enter__(self) -> Partitioner:
        self._active.enter_context(inductor_config.patch(custom_partitioner_fn=self))
        self._active.enter_context(compiling_within(self))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._active.close()


def budget_of(graph: Graph, budget: str | int) -> int:
    """Bytes of a budget for a graph."""
    base = simulate(graph, Schedule.keep_everything(graph))
    return parse_budget(budget, resident_bytes=graph.resident_bytes, peak_bytes=base.peak_bytes)


@functools.cache
def source_digest() -> str:
    """SHA-256 of lowtide's own code: other code makes other plans."""
    root = Path(__file__).resolve().parents[2]
    digest = hashlib.sha256(torch.__version__.encode())
    for folder in ("solver", "frontends", "runtime"):
        for path in sorted((root / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:32]


@checked_arguments
def partitioner(
    memory_budget: str | int,
    *,
    time_limit: float = 60.0,
    method: str = "auto",
    seed: int = 0,
    extra_resident_bytes: int = 0,
    reserve_bytes: int = 0,
) -> Partitioner:
    """A partitioner for inductor; see `Partitioner`, and `lowtide.backend` for the shorter way.

    Parameters
    ----------
    memory_budget
        For each compiled graph: `6GiB` or bytes, its inputs and parameters included, or a
        percentage: resident bytes + 60% of what the rest takes without recomputation. Where a
        model falls into several graphs (graph breaks), bytes bound each graph by itself: what other
        graphs have saved meanwhile is not in its sight.
    time_limit
        Seconds for the solver, per graph. Where programs are followed, of which there are about
        ten, each plan has a twelfth of it at most, and there is no further plan once it is over.
    method, seed
        As for `lowtide.solve`.
    extra_resident_bytes
        Bytes always in memory beside a graph's inputs: optimizer state.
    reserve_bytes
        Bytes of the budget that are left: by the program, or, where it cannot be followed, by the
        plan.

    Examples
    --------
    >>> with lowtide.partitioner("60%"):                # doctest: +SKIP
    ...     model = torch.compile(model)
    ...     model(batch).backward()                     # compiled here, so inside
    """
    return Partitioner(
        memory_budget,
        time_limit=time_limit,
        method=method,
        seed=seed,
        extra_resident_bytes=extra_resident_bytes,
        reserve_bytes=reserve_bytes,
    )
