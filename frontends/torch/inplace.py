"""Which op may put its result into memory that is there, and by which variant of its operator.

First, into one of its inputs.

Only elementwise operators with a kernel of their own for `out=` or in place, and softmax: they read
and write the same places in the same order as the plain call, so that every bit agrees, and take no
memory.
The input must be the result of another op, fill its storage as the output fills its own, and be
read last, in base order, by this op. Whether it does die there is up to the schedule.

Second, into memory that is set aside for it: that takes a kernel for `out=`, or copying.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from .masks import bernoulli
from .program import Kind, ValueRef

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...solver.graph import Graph
    from .program import Call, ProgramOp, ValueMeta

# Any tensor argument of these may be overwritten.
_POINTWISE = frozenset((
    "abs", "add", "addcdiv", "addcmul", "bitwise_and", "bitwise_not", "bitwise_or",
    "bitwise_xor", "ceil", "clamp", "clamp_max", "clamp_min", "cos", "div", "elu", "erf",
    "exp", "expm1", "floor", "gelu", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu",
    "lerp", "log", "log1p", "logical_and", "logical_not", "logical_or", "logit", "masked_fill",
    "maximum", "minimum", "mish", "mul", "neg", "pow", "reciprocal", "relu", "round", "rsqrt",
    "sgn", "sigmoid", "sign", "silu", "sin", "softplus", "sqrt", "sub", "tan", "tanh", "where",
    "xlogy",
))  # fmt: skip
# Of these the gradient that comes in, their first argument.
_BACKWARD = frozenset((
    "elu_backward", "gelu_backward", "hardsigmoid_backward", "hardtanh_backward",
    "leaky_relu_backward", "sigmoid_backward", "silu_backward", "softplus_backward",
    "tanh_backward", "threshold_backward",
))  # fmt: skip

# Of these, too, on the CPU: it sums over a row before it writes there, each place read once more.
_BY_ROWS = frozenset(
    ("_log_softmax", "_log_softmax_backward_data", "_softmax", "_softmax_backward_data")
)
# With a number these are composed, of the same on a tensor of one element: so they are in place.
# (`mul_.Scalar` swaps its factors, and rounds the number to bfloat16 where the plain one does not.)
_SCALAR = frozenset(("add_", "sub_", "mul_", "div_"))

# These take `out=` as well, and compute as they do without it.
_PLACED = frozenset(
    (
        "_log_softmax", "_log_softmax_backward_data", "_softmax", "_softmax_backward_data", "addmm",
        "amax", "amin", "avg_pool2d", "avg_pool2d_backward", "baddbmm", "bmm", "cat", "cumsum",
        "gather", "index_select", "max_pool2d_with_indices_backward", "mean", "mm",
        "nll_loss_backward", "sum", "tril", "triu",
    )
)  # fmt: skip
_COPIES = frozenset(("aten.clone", "aten._to_copy"))


class Variant(NamedTuple):
    """How to call an operator so that it overwrites an argument.

    Attributes
    ----------
    target
        The overload to call with the same arguments.
    out
        Keyword under which the overwritten argument is given once more; empty for an overload
        that changes its first argument.
    """

    target: Any
    out: str


def variant_of(call: Call, value: int, device: torch.device) -> Variant | None:
    """The variant of `call` on `device` that overwrites the argument `value`, if there is one."""
    target = call.target
    if type(target) is not torch._ops.OpOverload or target.namespace != "aten":
        return None
    places = [i for i, arg in enumerate(call.args) if arg == ValueRef(value)]
    name = str(target.overloadpacket).removeprefix("aten.")
    first = name in _BACKWARD or (name in _BY_ROWS and device.type == "cpu")
    if not places or not (name in _POINTWISE or (first and places == [0])):
        return None
    in_place, out = _variants(target, device.type.upper())
    return in_place if in_place is not None and places[0] == 0 else out


def placed_variant_of(call: Call, device: torch.device) -> Variant | None:
    """The variant of `call` on `device` that writes its result where it is told to, if any.

    `out` is empty for one that copies its second argument into its first.
    """
    target = call.target
    if target is bernoulli:
        return Variant(bernoulli, "out")
    if type(target) is not torch._ops.OpOverload or target.namespace != "aten":
        return None
    packet = str(target.overloadpacket)
    if packet in _COPIES:
        return Variant(torch.ops.aten.copy_.default, "")
    if packet.removeprefix("aten.") not in _PLACED | _POINTWISE | _BACKWARD:
        return None
    return _variants(target, device.type.upper())[1]


@functools.cache
def _variants(target: Any, key: str) -> tuple[Variant | None, Variant | None]:
    """The overloads of `target` that work in place, and with `out=`, by kernels of their own."""
    packet = target.overloadpacket
    plain = [(a.name, str(a.type)) for a in target._schema.arguments]
    in_place, out = None, None
    sibling = getattr(torch.ops.aten, f"{packet.__name__}_", None)
    if sibling is not None and target._overloadname in sibling.overloads():
        overload = getattr(sibling, target._overloadname)
        same = [(a.name, str(a.type)) for a in overload._schema.arguments] == plain
        scalar = sibling.__name__ in _SCALAR and target._overloadname == "Scalar"
        if same and (scalar or _own_kernel(overload, key)):
            in_place = Variant(sibling.Tensor if scalar else overload, "")
    for overload_name in packet.overloads():
        overload = getattr(packet, overload_name)
        arguments = overload._schema.arguments
        written = [a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write]
        rest = [(a.name, str(a.type)) for a in arguments if a.name not in written]
        if len(written) == 1 and rest == plain and _own_kernel(overload, key):
            out = Variant(overload, written[0])
    return in_place, out


def _own_kernel(overload: Any, key: str) -> bool:
    """Whether it has a kernel of its own: others run the plain operator and copy its result."""
    has_kernel: Any = torch._C._dispatch_has_kernel_for_dispatch_key
    schema = overload._schema
    suffix = f".{schema.overload_name}" if schema.overload_name else ""
    return bool(has_kernel(schema.name + suffix, key))


def overwritable(
    graph: Graph,
    ops: Sequence[ProgramOp],
    value_tensor: Sequence[int],
    value_meta: Sequence[ValueMeta],
    nbytes: Sequence[int],
) -> list[int]:
    """Per op: the tensor that its result may overwrite, or -1.

    Parameters
    ----------
    graph, ops
        The step, and what its ops do.
    value_tensor, value_meta
        Per value: its tensor (-1 for none), and what it looks like.
    nbytes
        Per tensor: bytes of its storage.
    """
    users: list[list[int]] = [[] for _ in graph.tensors]
    maker = [-1] * len(graph.tensors)
    for index, op in enumerate(graph.ops):
        for t in op.inputs:
            users[t].append(index)
        for t in op.outputs:
            maker[t] = index

    def fills(value: int) -> bool:
        return fills_storage(value_meta[value], nbytes[value_tensor[value]])

    def choice(index: int) -> int:
        op = ops[index]
        call = op.call
        if op.kind is not Kind.CALL or op.random or call is None or call.unpack:
            return -1
        made = call.outputs[0] if call.outputs else None
        if made is None or value_tensor[made] < 0 or not fills(made):
            return -1
        meta = value_meta[made]
        # Storages of scalars may be larger than they need be: of what they were reduced from.
        if (
            not meta.shape
            or meta.dtype.is_complex
            or not graph.tensors[value_tensor[made]].size_bytes
        ):
            return -1
        candidates = []
        for value in dict.fromkeys(call.refs()):
            t = value_tensor[value]
            if t < 0 or maker[t] < 0 or ops[maker[t]].kind is not Kind.CALL:
                continue
            if graph.tensors[t].output or users[t][-1] != index or not fills(value):
                continue
            views = [value_meta[v] for v in call.refs() if value_tensor[v] == t]
            if not all(looks_like(view, meta) for view in views):
                continue
            if variant_of(call, value, meta.device) is not None:
                candidates.append((len(users[t]), -maker[t], t))
        return min(candidates)[-1] if candidates else -1

    return [choice(index) for index in range(len(ops))]


def looks_like(one: ValueMeta, other: ValueMeta) -> bool:
    """Whether two values are alike in all but the lengths of their storages."""
    return replace(one, storage=0) == replace(other, storage=0)


def fills_storage(meta: ValueMeta, nbytes: int) -> bool:
    """Whether a value covers a storage of `nbytes` bytes, each element once."""
    count = 1
    for size, stride in sorted(zip(meta.shape, meta.stride, strict=True), key=lambda it: it[1]):
        if size != 1 and stride != count:
            return False
        count *= size
    return count * meta.dtype.itemsize == nbytes and meta.storage_offset == 0
