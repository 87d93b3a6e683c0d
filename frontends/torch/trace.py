"""Runs the joint graph on fake tensors: which values there are, and which share a storage."""

from __future__ import annotations

import contextlib
import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from ...solver.errors import CaptureError, a_type
from . import export
from .communication import refuse_collective
from .program import Call, ValueRef, refs_in
from .values import Line, Traced, Values

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .sources import Source

_CHECKS = {"aten._assert_tensor_metadata", "aten._assert_scalar", "aten.sym_constrain_range"}
# batch norm kernels that update the running statistics in place although their schema denies it
_HIDDEN_MUTATION = {"aten.cudnn_batch_norm", "aten.miopen_batch_norm"}


def trace_values(
    joint: export.Joint, sources: Sequence[Source], shared: Sequence[int], mode: Any
) -> Traced:
    """Run the joint graph on fake tensors and number its values.

    Parameters
    ----------
    joint
        The graph.
    sources
        The step's inputs.
    shared
        For each of them the first one whose real tensor shares its memory (itself, mostly).
    mode
        Their fake mode.
    """
    values, lines = Values(), []
    env: dict[fx.Node, Any] = {}  # node to fake result
    number: dict[fx.Node, int | tuple[int | None, ...]] = {}
    arguments: list[int] = []
    owner: dict[int, int] = {}  # first input of a shared storage to its value
    constants: list[tuple[int, torch.Tensor]] = []
    results: list[int | None] = []
    slots = iter(joint.arguments)
    with mode, torch.no_grad():
        for node in joint.module.graph.nodes:
            if node.op == "placeholder":
                slot = next(slots)
                if slot.role == "token":
                    env[node] = None
                    arguments.append(-1)
                    continue
                label = f"{slot.role}.{slot.index}"
                if slot.role == "input":
                    label = sources[slot.index].label
                    fake = sources[slot.index].fake.detach()
                    if shared[slot.index] != slot.index and shared[slot.index] in owner:
                        values.merge(owner[shared[slot.index]], fake)
                else:
                    like = node.meta["val"]
                    fake = torch.empty_strided(
                        tuple(like.shape), like.stride(), dtype=like.dtype, device=like.device
                    )
                env[node] = fake
                number[node] = values.add(fake, label)
                arguments.append(number[node])  # type: ignore[arg-type]
                if slot.role == "input":
                    owner.setdefault(shared[slot.index], arguments[-1])
            elif node.op == "get_attr":
                real = _attribute(joint.module, str(node.target))
                if not isinstance(real, torch.Tensor) or not export.is_plain(real):
                    raise CaptureError(
                        f"the step has the constant {node.target}, of which no data is known"
                    )
                env[node] = mode.from_tensor(real)
                number[node] = values.add(env[node], f"constant.{node.target}")
                constants.append((number[node], real))  # type: ignore[arg-type]
            elif node.op == "output":
                for item in node.args[0]:
                    found = number.get(item) if isinstance(item, fx.Node) else None
                    assert found is None or isinstance(found, int)
                    results.append(found)
            elif node.target is operator.getitem:
                source, index = node.args
                env[node] = env[source][index]
                if isinstance(env[node], torch.Tensor):
                    group = number[source]
                    assert isinstance(group, tuple)
                    number[node] = group[index]
            else:
                line = _call(node, env, number, values, mode)
                if line is not None:
                    lines.append(line)
    return Traced(lines, values, arguments, results, constants)


def _call(
    node: fx.Node,
    env: dict[fx.Node, Any],
    number: dict[fx.Node, int | tuple[int | None, ...]],
    values: Values,
    mode: Any,
) -> Line | None:
    """Run one node on fakes and describe it; None for a check that static shapes have settled."""
    target, node_args = node.target, node.args
    effect = export.effect(node)
    if effect is not None and str(effect[0]) == "aten._linalg_check_errors.default":
        target, node_args = effect
    origin = export.origin_of(node)
    where = origin.split("\n")[0]
    if not isinstance(target, torch._ops.OpOverload):
        raise CaptureError(f"{where}: the step uses {target}, which cannot be replayed yet")
    packet = str(target.overloadpacket)
    if packet in _CHECKS:
        return None
    refuse_collective(target, where)
    if target._schema.is_mutable or (packet in _HIDDEN_MUTATION and _trains(node)):
        raise CaptureError(f"{where}: {target} changes its arguments in place: not supported")

    def literal(item: fx.Node) -> Any:
        found = env[item]
        if isinstance(found, torch.Tensor):
            index = number[item]
            assert isinstance(index, int)
            return ValueRef(index)
        if isinstance(found, (bool, int, float, str)) or found is None:
            return found
        raise CaptureError(f"{where}: {target} takes {a_type(type(found))}, which has no value")

    args = _plain(fx.map_arg(node_args, literal))
    kwargs = {key: _plain(item) for key, item in fx.map_arg(node.kwargs, literal).items()}
    if effect is not None:
        env[node] = (None,)
        return Line(node.name, Call(target, args, kwargs, (), False), origin, _late(node), False)
    fake_args, fake_kwargs = fx.map_arg((node_args, dict(node.kwargs)), lambda n: env[n])
    if isinstance(kwargs.get("generator"), torch.Generator):
        raise CaptureError(f"{where}: {target} draws from its own generator")
    single = len(target._schema.returns) == 1 and str(target._schema.returns[0].type) == "Tensor"
    with contextlib.nullcontext() if single else export.uncached(mode):
        out = target(*fake_args, **fake_kwargs)
    env[node] = out
    read = {values.storage[v] for v in refs_in((args, tuple(kwargs.values())))}
    before = len(values.nbytes)
    unpack = isinstance(out, (tuple, list))
    made: list[int | None] = []
    for index, item in enumerate(out if unpack else [out]):
        if not isinstance(item, torch.Tensor):
            if isinstance(item, (torch.SymInt, torch.SymFloat, torch.SymBool)):
                raise CaptureError(f"{where}: {target} makes a size that depends on data")
            made.append(None)
            continue
        if item.layout is not torch.strided:
            raise CaptureError(f"{where}: {target} makes a {item.layout} tensor: not supported")
        made.append(values.add(item, f"{node.name}.{index}" if unpack else node.name))
    number[node] = tuple(made) if unpack else made[0]  # type: ignore[assignment]
    aliases = [v for v in made if v is not None and values.storage[v] < before]
    fresh = [v for v in made if v is not None and values.storage[v] >= before]
    if aliases and (fresh or len(read) != 1):
        raise CaptureError(f"{where}: {target} returns both a view and new tensors: not supported")
    call = Call(target, args, kwargs, tuple(made), unpack)
    return Line(node.name, call, origin, _late(node), view=bool(aliases))


def _late(node: fx.Node) -> bool:
    """Whether the tracer met a node during backward."""
    return node.meta.get("partitioner_tag") == "is_backward"


def _plain(argument: Any) -> Any:
    """Arguments in ordinary containers instead of fx's immutable ones."""
    if isinstance(argument, tuple):
        return tuple(_plain(item) for item in argument)
    if isinstance(argument, list):
        return [_plain(item) for item in argument]
    if isinstance(argument, dict):
        return {key: _plain(item) for key, item in argument.items()}
    if isinstance(argument, slice):
        return slice(_plain(argument.start), _plain(argument.stop), _plain(argument.step))
    return argument


def _trains(node: fx.Node) -> bool:
    """Whether a batch norm node updates running statistics."""
    return len(node.args) > 5 and node.args[3] is not None and bool(node.args[5])


def _attribute(module: Any, path: str) -> Any:
    for part in path.split("."):
        module = getattr(module, part)
    return module
