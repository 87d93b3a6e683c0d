"""Times of roots: the library's arithmetic by the roofline, everything else by its traffic.

A kernel reads the tensors behind its expression once and writes its own; functions such as exp
count on a CPU. Kernels that inductor fuses further cost less than this: times are relative.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from ..costs.machine import PRESETS, Machine
from ..costs.roofline import ELEMENT_COST, call_time
from ..program import Call, ValueMeta, ValueRef
from .inline import shown_bytes
from .roles import Role

if TYPE_CHECKING:
    from .inline import Expressions

_RANDOM: Any = torch.ops.aten.bernoulli


def machine_of(device: torch.device) -> Machine:
    """The device at hand, measured once outside of any tracing mode."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    if device.type not in ("cpu", "cuda"):
        return PRESETS["cpu"]
    with unset_fake_temporarily():
        return Machine.measured(device)


def root_time(node: fx.Node, found: Expressions, machine: Machine) -> int:
    """Nanoseconds of a root, with what is computed inside it."""
    if found.roles[node] is Role.EFFECT:
        return machine.overhead_ns
    if found.roles[node] is Role.LIBRARY:
        call, metas = as_call(node)
        return call_time(call, metas, machine)
    moved = sum(min(shown_bytes(leaf), _widest(node, leaf)) for leaf in found.arguments(node))
    moved += shown_bytes(node)
    seconds = moved / machine.bandwidth
    work = sum(_elements(item) * _element_cost(item) for item in found.closure(node))
    seconds = max(seconds, work / machine.elementwise)
    return machine.overhead_ns + math.ceil(seconds * 1e9)


def _widest(node: fx.Node, leaf: fx.Node) -> int:
    """Bytes that a kernel reads of a leaf at most: a gather reads no more than it makes."""
    largest = max((_elements(item) for item in (node, *node.all_input_nodes)), default=1)
    value = leaf.meta.get("val")
    width = value.dtype.itemsize if isinstance(value, torch.Tensor) else 1
    return largest * width


def _elements(node: fx.Node) -> int:
    value = node.meta.get("val")
    return int(value.numel()) if isinstance(value, torch.Tensor) else 0


def _element_cost(node: fx.Node) -> float:
    packet = getattr(node.target, "_overloadpacket", None)
    if packet is None:
        return 0.0
    if "inductor_rand" in str(packet):
        return ELEMENT_COST[_RANDOM]
    return ELEMENT_COST.get(packet, 0.0)


def as_call(node: fx.Node) -> tuple[Call, list[ValueMeta]]:
    """A node as the roofline reads calls, with what its values look like."""
    metas: list[ValueMeta] = []

    def refer(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        metas.append(
            ValueMeta(
                tuple(map(int, value.shape)), tuple(map(int, value.stride())), 0, value.dtype,
                value.device,
            )
        )  # fmt: skip
        return ValueRef(len(metas) - 1)

    def argument(item: fx.Node) -> Any:
        return refer(item.meta.get("val"))

    args = fx.map_arg(node.args, argument)
    kwargs = fx.map_arg(dict(node.kwargs), argument)
    out = node.meta.get("val")
    unpack = isinstance(out, (tuple, list))
    made = [refer(item) for item in (out if isinstance(out, (tuple, list)) else [out])]
    outputs = tuple(item.index if isinstance(item, ValueRef) else None for item in made)
    return Call(node.target, args, kwargs, outputs, unpack), metas  # type: ignore[arg-type]
