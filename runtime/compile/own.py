"""PyTorch's own splits of a joint graph, as choices beside the plans of the ladder.

Under an `activation_memory_budget` PyTorch's partitioner chooses what to save by a minimum cut: at
1.0 all that is not fused into its readers, below first less of what is cheap, then a knapsack of
matrix products and the like. It looks at the bytes that it saves, not at a peak, so a smaller share
may have a larger peak. Here each share is one split: its program can be followed and compiled as
PyTorch itself would, and the plan of the same saved values, in the solver's order, is a start.
"""

from __future__ import annotations

import hashlib
import logging
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ...frontends.torch.compile.inline import shown_bytes
from ...frontends.torch.compile.private import own_partition
from ...frontends.torch.compile.roles import Role, is_random
from ...solver.assemble import Origin, assemble
from ...solver.plan import Plan
from ...solver.realise import Tables, realise_saved
from ...solver.schedule import Schedule
from ...solver.simulate import simulate

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch import fx

    from ...frontends.torch.compile.joint import JointGraph

_log = logging.getLogger(__name__)
SHARES = (1.0, 0.9, 0.7, 0.5, 0.3, 0.1, 0.0)
FEW = 3  # of them for a larger graph, whose minimum cuts take seconds each
MANY_OPS = 1000


class Own(NamedTuple):
    """A split of PyTorch's own.

    Attributes
    ----------
    share
        Its `activation_memory_budget`.
    plan
        The same values saved and recomputed, each once, in the solver's order; its peak and time
        are predictions about that.
    saved_bytes
        Of what the forward hands to the backward, inputs left out: its program takes no less.
    light
        Whether nothing is recomputed but what a compiler fuses into kernels: no matrix products,
        convolutions, attention.
    """

    share: float
    plan: Plan
    saved_bytes: int
    light: bool


Choice = Plan | Own  # what a joint graph can be split by


def plan_of(choice: Choice) -> Plan:
    """The plan of a choice."""
    return choice.plan if isinstance(choice, Own) else choice


class Task(NamedTuple):
    """A joint graph to split: as PyTorch gave it, as the solver sees it, and the user's budget."""

    module: fx.GraphModule
    inputs: Sequence[Any]
    options: Mapping[str, Any]
    joint: JointGraph
    budget_bytes: int
    resident_bytes: int

    def digest(self) -> str:
        """SHA-256 of the joint graph: operators, arguments, sizes and layouts of all values."""
        digest = hashlib.sha256()
        for node in self.module.graph.nodes:
            value = node.meta.get("val")
            looks = [
                (tuple(item.shape), item.stride(), item.dtype, item.device)
                for item in (value if isinstance(value, (tuple, list)) else [value])
                if isinstance(item, torch.Tensor)
            ]
            text = f"{node.name} {node.target} {node.args} {node.kwargs} {looks}\n"
            digest.update(text.encode())
        return digest.hexdigest()


def own_splits(task: Task) -> tuple[Own, ...]:
    """PyTorch's splits at `SHARES`, each that differs once, the largest share first.

    Of a graph with more than `MANY_OPS` those at the largest shares, which matter most.

    There are none where parts of the model are marked for recomputation by the user: such splits
    may save states of generators, which is not looked at here.
    """
    if any("recompute" in node.meta for node in task.module.graph.nodes):
        return ()
    found: dict[tuple[str, ...], Own] = {}
    tables = Tables.of(task.joint.graph)
    few = len(task.joint.graph.ops) > MANY_OPS
    for share in SHARES[:FEW] if few else SHARES:
        try:
            _, backward = own_partition(task.module, task.inputs, share, **task.options)
        except Exception as error:  # whatever PyTorch's partitioner may not be made for
            _log.info("PyTorch has no split for the share %g: %r", share, error)
            continue
        saved = tuple(node.name for node in backward.graph.find_nodes(op="placeholder"))
        if saved not in found:
            found[saved] = _own(task.joint, backward, share, tables)
    return tuple(found.values())


def _own(joint: JointGraph, backward: fx.GraphModule, share: float, tables: Tables) -> Own:
    graph, roles = joint.graph, joint.found.roles
    names = {node.name for node in backward.graph.nodes if node.op == "call_function"}
    again = [
        op
        for op, root in enumerate(joint.roots[: joint.boundary])
        if root is not None and root.name in names
    ]
    lost = {tensor for op in again for tensor in graph.ops[op].outputs}
    kept = [tensor for tensor in range(len(graph.tensors)) if tensor not in lost]
    computes = realise_saved(graph, kept, hold=None, tables=tables)
    simulation = simulate(graph, Schedule.from_computes(graph, computes))
    origin = Origin("pytorch", 0, 1, 0.0, lower_bound_ns=-1)
    plan = assemble(graph, simulation.peak_bytes, computes, origin)
    heavy = {node for node, role in roles.items() if role is Role.LIBRARY and not is_random(node)}
    given = {node.name for node in (*joint.ends.primals, *joint.ends.tangents)}
    saved = [n for n in backward.graph.find_nodes(op="placeholder") if n.name not in given]
    return Own(share, plan, saved_bytes(saved), not any(joint.roots[op] in heavy for op in again))


def saved_bytes(saved: Iterable[fx.Node]) -> int:
    """Bytes that saved values have at least: of those that share memory, the largest."""
    sizes: dict[int, int] = {}
    for node in saved:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            key = int(value.untyped_storage()._cdata)
            sizes[key] = max(sizes.get(key, 0), shown_bytes(node))
    return sum(sizes.values())
