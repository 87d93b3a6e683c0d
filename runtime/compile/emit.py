"""Writes a schedule of a joint graph out as the two modules that a compiler gets.

The backward has its nodes in the order of the schedule: what is recomputed stands right before its
first reader, and an op that runs twice there has two nodes. Each reader has its own copies of what
is computed inside it. Compilers keep both: equal nodes are not merged after the split.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import fx

from ...frontends.torch.compile.private import UNCHECKED, saved_desc
from ...frontends.torch.compile.roles import Role

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ...frontends.torch.compile.joint import JointGraph
    from ...solver.schedule import Schedule


class Writer:
    """A new graph that nodes of a joint graph are copied into, any of them any number of times."""

    def __init__(self, joint: JointGraph) -> None:
        self.joint, self.graph = joint, fx.Graph()
        self._holder: dict[fx.Node, fx.Node] = {}
        # Views, and constants: node -> its copy and the copies that it was made from.
        self._views: dict[fx.Node, tuple[fx.Node, tuple[fx.Node, ...]]] = {}

    def placeholder(self, node: fx.Node) -> None:
        """An input of the new graph, named as in the joint graph."""
        new = self.graph.placeholder(node.name)
        new.meta = node.meta
        self._holder[node] = new

    def run(self, root: fx.Node) -> None:
        """Compute a root, from the latest copies of what it reads."""
        self._holder[root] = self._copy(root)
        for user in root.users:
            if self.joint.found.roles.get(user) is Role.PART:
                self._holder[user] = self.graph.node_copy(user, lambda item: self._holder[item])

    def value(self, node: Any) -> Any:
        """A result: the latest copy of a root, or an expression of roots; None stays None."""
        if not isinstance(node, fx.Node):
            return node
        return self._holder[node] if node in self._holder else self._copy(node)

    def _copy(self, node: fx.Node) -> fx.Node:
        found = self.joint.found
        local: dict[fx.Node, fx.Node] = {}

        def latest(item: fx.Node) -> fx.Node:
            return local[item] if item in local else self._holder[item]

        for item in found.closure(node):
            sources = tuple(latest(source) for source in item.all_input_nodes)
            view = found.roles[item] is Role.FREE
            if view and item in self._views and self._views[item][1] == sources:
                local[item] = self._views[item][0]
                continue
            local[item] = self.graph.node_copy(item, latest)
            if view:
                self._views[item] = (local[item], sources)
        return local[node]

    def finish(self, results: Sequence[Any], descs: Sequence[Any]) -> fx.Graph:
        """Return the results and drop what is of no use to them."""
        values = tuple(self.value(node) for node in results)
        end = self.graph.output(values)
        end.meta["desc"] = list(descs)
        end.meta["output_stack_traces"] = [
            item.meta.get("stack_trace") if isinstance(item, fx.Node) else None for item in values
        ]
        self.graph.eliminate_dead_code()
        self.graph.lint()
        return self.graph


def modules(
    module: fx.GraphModule, joint: JointGraph, schedule: Schedule
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """The forward and the backward that a schedule stands for.

    The forward returns its results and then what the backward reads; the backward takes that and
    the tangents, as AOTAutograd expects.

    Parameters
    ----------
    module
        Holder of the joint graph, for its attributes.
    joint, schedule
        The graph and a schedule of it.
    """
    computes = schedule.computes()
    border = computes.index(joint.boundary)
    early, late = computes[:border], computes[border + 1 :]
    saved = saved_nodes(joint, late)
    ends = joint.ends

    writer = Writer(joint)
    for node in ends.primals:
        writer.placeholder(node)
    _run(writer, joint, early)
    descs = [saved_desc(place, node) for place, node in enumerate(saved)]
    forward = writer.finish((*ends.outputs, *saved), (*ends.output_descs, *descs))

    writer = Writer(joint)
    for node in (*saved, *ends.tangents):
        writer.placeholder(node)
    _run(writer, joint, late)
    backward = writer.finish(ends.gradients, ends.gradient_descs)
    for node in backward.nodes:
        if node.op in ("call_function", "get_attr"):
            node.meta["autograd_backward"] = True
    make: Callable[..., fx.GraphModule] = fx._lazy_graph_module._make_graph_module
    return make(module, forward), make(module, backward)


def _run(writer: Writer, joint: JointGraph, ops: Iterable[int]) -> None:
    for op in ops:
        root = joint.roots[op]
        assert root is not None
        writer.run(root)


def saved_nodes(joint: JointGraph, late: Sequence[int]) -> list[fx.Node]:
    """Nodes that a backward reads before, or without, computing them: inputs first."""
    graph, found = joint.graph, joint.found
    tangents = set(joint.ends.tangents)
    made: set[fx.Node] = set()
    needed: dict[fx.Node, None] = {}

    def read(leaves: Iterable[fx.Node]) -> None:
        for leaf in leaves:
            if leaf not in made and leaf not in tangents:
                needed[leaf] = None

    for op in late:
        root = joint.roots[op]
        assert root is not None
        read(found.arguments(root))
        made.update(node for t in graph.ops[op].outputs if (node := joint.tensors[t]) is not None)
    for result in joint.ends.gradients:
        if result is not None:
            read(found.leaves[result])
    return sorted(
        needed,
        key=lambda n: (bool(n.meta.get(UNCHECKED)), n not in joint.ends.primals, found.place[n]),
    )
