"""What a compiler makes of each node of a joint graph: nothing, part of a kernel, or a kernel.

Inductor puts elementwise nodes into the kernels of their consumers, and reductions together with
what computes their arguments. Matrix products, convolutions, attention, sorting and the like are
calls of libraries, whose arguments must be in memory.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import torch
from torch import fx

from ....solver.errors import CaptureError
from ..program import Call
from ..rng import draws
from .private import is_mutable, is_part

_aten: Any = torch.ops.aten
_prims: Any = torch.ops.prims


class Role(Enum):
    """What becomes of a node.

    `INPUT`: a placeholder. `FREE`: a view, or a constant made where it is needed: no bytes, no
    time. `POINTWISE`: elementwise; computed within its consumers, or a tensor of its own.
    `REDUCTION`: a tensor of its own, computed from expressions. `LIBRARY`: a tensor of its own,
    computed from tensors. `EFFECT`: writes into an argument. `PART`: one result of several.
    """

    INPUT = "input"
    FREE = "free"
    POINTWISE = "pointwise"
    REDUCTION = "reduction"
    LIBRARY = "library"
    EFFECT = "effect"
    PART = "part"


# Elementwise, or a gather of elements, without PyTorch's tag.
_POINTWISE = {
    "aten.clone", "aten.copy", "aten._to_copy", "aten.where", "aten.embedding", "aten.index",
    "aten.gather", "aten.index_select", "aten.constant_pad_nd", "aten.flip",
    "aten.native_dropout_backward", "prims.convert_element_type", "prims.inductor_lookup_seed",
    "prims.inductor_random", "prims.inductor_randint", "prims.where", "prims.device_put",
}  # fmt: skip
_REDUCTIONS = {
    "aten.sum", "aten.mean", "aten.amax", "aten.amin", "aten.max", "aten.min", "aten.prod",
    "aten.any", "aten.all", "aten.argmax", "aten.argmin", "aten.var", "aten.var_mean", "aten.std",
    "aten.std_mean", "aten.logsumexp", "aten.aminmax", "prims.xor_sum",
    "prims.prepare_softmax_online",
}  # fmt: skip
_VIEWS = {"aten._unsafe_view", "aten.reshape", "aten.detach", "aten.alias", "prims.view_of"}
# Functions as values of a graph that are called like operators.
_HIGHER_ORDER = {
    "triton_kernel_wrapper_functional", "auto_functionalized", "auto_functionalized_v2",
    "flex_attention", "flex_attention_backward",
}  # fmt: skip
_SEEDS = {"prims.inductor_seed", "prims.inductor_seeds"}


def packet_of(node: fx.Node) -> str:
    """`aten.mm` for a call of it; the target's own name for what is no operator."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return str(target.overloadpacket)
    return str(getattr(target, "__name__", target))


def role_of(node: fx.Node) -> Role:
    """What becomes of a node.

    Raises
    ------
    CaptureError
        For a node that cannot be planned; it is named.
    """
    if node.op == "placeholder":
        return Role.INPUT
    if node.op == "get_attr":
        return Role.FREE
    if is_part(node):
        return Role.PART
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        if isinstance(target, torch._ops.HigherOrderOperator) and packet_of(node) in _HIGHER_ORDER:
            return Role.LIBRARY
        raise CaptureError(
            f"torch.compile: the joint graph calls {packet_of(node)} ({node.name}), which cannot "
            "be planned"
        )
    if is_mutable(node):
        return Role.EFFECT
    name = packet_of(node)
    if is_random(node):
        return Role.LIBRARY
    if not isinstance(node.meta.get("val"), torch.Tensor):
        return Role.REDUCTION if name in _REDUCTIONS else Role.LIBRARY
    returned = target._schema.returns
    if name in _VIEWS or (returned and returned[0].alias_info is not None):
        return Role.FREE
    if not node.all_input_nodes:
        return Role.FREE  # full, iota, arange
    if torch.Tag.pointwise in target.tags or name in _POINTWISE:
        return Role.POINTWISE
    return Role.REDUCTION if name in _REDUCTIONS else Role.LIBRARY


def is_random(node: fx.Node) -> bool:
    """Whether a node draws from a generator: its result must be kept, not computed again."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    call = Call(node.target, tuple(node.args), dict(node.kwargs), (), unpack=False)
    return packet_of(node) in _SEEDS or draws(call)


def is_communication(node: fx.Node) -> bool:
    """Whether a node talks to other processes."""
    return getattr(node.target, "namespace", "") in ("_c10d_functional", "c10d_functional", "c10d")
