"""The joint graph of torch.compile as a `Graph` for the solver.

Ops are roots, with everything that is computed inside them (see `inline`); what the forward's
results need is the forward, all else runs after the tangents have come. Saved tensors are what is
alive between the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import fx

from ....solver.errors import CaptureError
from ....solver.graph import Graph, Op, Tensor
from ..assemble import allocated
from .costs import machine_of, root_time
from .inline import Expressions, expressions, nbytes
from .overwrites import overwritten
from .private import Ends, ends_of, is_late, is_mutable, written_inputs
from .roles import Role, is_communication, is_random, packet_of

if TYPE_CHECKING:
    from ....solver.graph import Phase
    from ..costs.machine import Machine

BOUNDARY = "lowtide.backward"


@dataclass(frozen=True)
class JointGraph:
    """A joint graph, planned and written out by op.

    Attributes
    ----------
    graph
        For the solver. Besides tensors it has `after.NAME`: of no bytes, they keep ops in order.
    ends
        Inputs and outputs of the joint graph.
    found
        What is computed inside what.
    roots
        Per op: its root; None for the boundary.
    boundary
        Index of the op that stands for the arrival of the tangents.
    tensors
        Per tensor: the node that holds it (a root, a part of one, an input), None for a result
        that nobody reads or a tensor that only keeps order.
    """

    graph: Graph
    ends: Ends
    found: Expressions
    roots: tuple[fx.Node | None, ...]
    boundary: int
    tensors: tuple[fx.Node | None, ...]


def joint_graph(
    graph: fx.Graph, num_fwd_outputs: int, *, name: str, extra_resident_bytes: int = 0,
    machine: Machine | None = None, in_place: bool = True,
) -> JointGraph:  # fmt: skip
    """Make the graph of a joint graph.

    Parameters
    ----------
    graph
        Functional, without dead code, with fake values in `node.meta["val"]`.
    num_fwd_outputs
        How many of its results are the forward's.
    name
        What to call it.
    extra_resident_bytes
        Bytes always in memory that the graph does not see.
    machine
        For the times; None: the device of the graph, measured.
    in_place
        Whether the compiler writes results over inputs that die.

    Raises
    ------
    CaptureError
        If a size is symbolic or a node cannot be planned.
    """
    _refuse_symbols(graph)
    ends = ends_of(graph, num_fwd_outputs)
    results = [n for n in (*ends.outputs, *ends.gradients) if n is not None]
    found = expressions(graph, results)
    device = device_of(graph)
    builder = _Builder(found, ends, machine or machine_of(device), device, in_place)
    return builder.build(graph, name, extra_resident_bytes)


def _refuse_symbols(graph: fx.Graph) -> None:
    for node in graph.nodes:
        value = node.meta.get("val")
        for item in value if isinstance(value, (tuple, list)) else [value]:
            symbolic = isinstance(item, (torch.SymInt, torch.SymFloat, torch.SymBool))
            if isinstance(item, torch.Tensor):
                sizes = (*item.shape, *(item.stride() if item.layout is torch.strided else ()))
                symbolic = any(not isinstance(size, int) for size in sizes)
            if symbolic:
                raise CaptureError(
                    f"torch.compile: {node.name} has a size that is not known when the graph is "
                    "planned: compile with dynamic=False, so that each shape has its own plan"
                )


def device_of(graph: fx.Graph) -> torch.device:
    """Where the graph computes: the first device that is not the host, if there is one."""
    devices = [
        node.meta["val"].device
        for node in graph.nodes
        if isinstance(node.meta.get("val"), torch.Tensor)
    ]
    return next((d for d in devices if d.type != "cpu"), torch.device("cpu"))


class _Builder:
    """Collects ops and tensors."""

    def __init__(
        self, found: Expressions, ends: Ends, machine: Machine, device: torch.device,
        in_place: bool,
    ) -> None:  # fmt: skip
        self.found, self.ends, self.machine = found, ends, machine
        self.device, self.in_place = device, in_place
        self.tensors: list[Tensor] = []
        self.holders: list[fx.Node | None] = []
        self.index: dict[fx.Node, int] = {}
        self.pinned = {
            leaf
            for node in (*ends.outputs, *ends.gradients)
            if node is not None
            for leaf in found.leaves[node]
        }
        self.mutated = {
            leaf
            for node in found.roots
            if found.roles[node] is Role.EFFECT and node.args
            for leaf in found.leaves[node.args[0]]  # type: ignore[index]
        } | written_inputs(ends)

    def build(self, graph: fx.Graph, name: str, extra: int) -> JointGraph:
        forward = self._forward()
        early = [node for node in self.found.roots if node in forward]
        late = [node for node in self.found.roots if node not in forward]
        for node in self.ends.primals:
            self._tensor(node)
        ops: list[Op] = []
        roots: list[fx.Node | None] = []
        self.over = overwritten(self.found, (*early, *late), self.pinned) if self.in_place else {}
        marks = self._orders(early)
        for node in early:
            ops.append(self._op(node, "forward", marks))
            roots.append(node)
        boundary = len(ops)
        ops.append(self._boundary(early, marks))
        roots.append(None)
        marks = self._orders(late)
        for node in late:
            ops.append(self._op(node, "backward", marks))
            roots.append(node)
        made = Graph(
            name, tuple(ops), tuple(self.tensors), extra_resident_bytes=extra,
            meta={"device": str(self.device), "torch": str(torch.__version__), "times": "roofline",
                  "from": "torch.compile"},
        )  # fmt: skip
        return JointGraph(made, self.ends, self.found, tuple(roots), boundary, tuple(self.holders))

    def _forward(self) -> set[fx.Node]:
        """What the forward's results and its writes into inputs need."""
        stack = [node for node in self.ends.outputs if node is not None]
        stack += [n for n in self.found.roles if is_mutable(n) and not is_late(n)]
        seen: set[fx.Node] = set()
        while stack:
            node = stack.pop()
            if node not in seen:
                seen.add(node)
                stack += node.all_input_nodes
        for node in self.ends.tangents:
            if node in seen:
                raise CaptureError(
                    f"torch.compile: a result of the forward depends on {node.name}, which only "
                    "the backward has"
                )
        return seen

    def _tensor(self, node: fx.Node, *, pinned: bool = False) -> int:
        value = node.meta["val"]
        where = value.device if isinstance(value, torch.Tensor) else self.device
        size = allocated(nbytes(node), where, self.device)
        shape = f"{value.dtype}".removeprefix("torch.") + str(list(value.shape))
        self.index[node] = self._add(node.name, size, node, pinned or node in self.pinned, shape)
        return self.index[node]

    def _add(
        self, name: str, size: int, holder: fx.Node | None, output: bool, spec: str = ""
    ) -> int:
        self.tensors.append(Tensor(name, size, output=output, spec=spec))
        self.holders.append(holder)
        return len(self.tensors) - 1

    def _orders(self, roots: list[fx.Node]) -> dict[fx.Node, int]:
        """Ops that others must follow, with a tensor of no bytes that stands for having run.

        A write into an input follows all that read it, random ops follow each other.
        """
        marks: dict[fx.Node, int] = {}
        for node in roots:
            if self._ordered(node):
                marks[node] = self._add(f"after.{node.name}", 0, None, True)
        return marks

    def _ordered(self, node: fx.Node) -> bool:
        return (
            self.found.roles[node] is Role.EFFECT
            or is_random(node)
            or is_communication(node)
            or self._reads_mutated(node)
        )

    def _reads_mutated(self, node: fx.Node) -> bool:
        return bool(self.mutated) and not self.mutated.isdisjoint(self.found.arguments(node))

    def _op(self, node: fx.Node, phase: Phase, marks: dict[fx.Node, int]) -> Op:
        reads = [self.index[leaf] for leaf in self.found.arguments(node)]
        earlier = [
            other for other in marks if other is not node and marks[other] < marks.get(node, -1)
        ]
        if self.found.roles[node] is Role.EFFECT:
            reads += [marks[other] for other in earlier if not is_random(other)]
        if (is_random(node) or is_communication(node)) and earlier:
            reads += [
                marks[other] for other in earlier if is_random(other) or is_communication(other)
            ][-1:]
        writes = self._writes(node)
        if node in marks:
            writes.append(marks[node])
        return Op(
            node.name,
            packet_of(node),
            root_time(node, self.found, self.machine),
            tuple(dict.fromkeys(reads)),
            tuple(writes),
            recompute=not self._ordered(node),
            phase=phase,
            source=_source(node),
            overwrites=self.index[self.over[node]] if node in self.over else -1,
        )

    def _writes(self, node: fx.Node) -> list[int]:
        """Tensors of a root's results; those that nobody reads are made, too."""
        if self.found.roles[node] is Role.EFFECT:
            target = node.args[0]
            assert isinstance(target, fx.Node)
            # What reads the result of a write reads what was written to.
            self.index[node] = self.index[self.found.leaves[target][0]]
            return []
        value = node.meta.get("val")
        if not isinstance(value, (tuple, list)):
            return [self._tensor(node)]
        parts = {user.args[1]: user for user in node.users}
        made = []
        for place, item in enumerate(value):
            if place in parts and isinstance(item, torch.Tensor):
                made.append(self._tensor(parts[place]))
            elif isinstance(item, torch.Tensor) and item.layout is torch.strided:
                size = allocated(int(item.untyped_storage().nbytes()), item.device, self.device)
                made.append(self._add(f"{node.name}.{place}", size, None, False))
        return made

    def _boundary(self, early: list[fx.Node], marks: dict[fx.Node, int]) -> Op:
        """The op that stands between forward and backward: it follows the forward's results."""
        reads = [
            self.index[leaf]
            for node in self.ends.outputs
            if node is not None
            for leaf in self.found.leaves[node]
        ]
        made = {self.index.get(node, -1) for node in early}
        reads += [t for t in marks.values() if t not in made]
        # The caller holds what it gives to a backward until that returns.
        writes = [self._tensor(node, pinned=True) for node in self.ends.tangents]
        return Op(
            BOUNDARY, BOUNDARY, 0, tuple(dict.fromkeys(reads)), tuple(writes), recompute=False,
            phase="backward",
        )  # fmt: skip


def _source(node: fx.Node) -> str:
    """The last line of the user's code that a node stems from."""
    for line in reversed(str(node.meta.get("stack_trace") or "").splitlines()):
        words = line.strip()
        if words.startswith("File "):
            return words.removeprefix("File ").replace('"', "")
    return ""
