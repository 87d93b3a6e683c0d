"""Results as the kernels of a CPU give them, where PyTorch's fake tensors have another layout.

A trace asks fake tensors whether a copy is needed (`contiguous`, `reshape`): a wrong answer leaves
one out that eager PyTorch makes, or adds one. Each rule here is what the kernel does, so it also
holds for a version of PyTorch whose fake tensors are right. Part of `export`: this, too, is
PyTorch's inside.

A rule gets the arguments of a call, and returns for each result a `Like`, or None for a result that
it leaves as it is.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Rule = Callable[..., tuple["Like | None", ...]]
    Strides = tuple[int, ...]

_aten: Any = torch.ops.aten
_prims: Any = torch._prims_common
_SHORT = (torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True)
class Like:
    """What is known of a result.

    Attributes
    ----------
    layout
        Its strides in elements, or the memory format that they follow from.
    dtype
        Its type; None if that of the fake tensor is right.
    """

    layout: Strides | torch.memory_format = torch.contiguous_format
    dtype: torch.dtype | None = None

    def strides(self, shape: tuple[int, ...]) -> Strides:
        """Strides of a result of that shape."""
        if not isinstance(self.layout, torch.memory_format):
            return self.layout
        if self.layout is torch.contiguous_format:
            return tuple(_prims.make_contiguous_strides_for(shape))
        return tuple(_prims.make_channels_last_strides_for(shape))


@contextlib.contextmanager
def true_results() -> Iterator[None]:
    """Let fake tensors on a CPU look like the results of its kernels, by the rules of this file.

    Results of PyTorch's own rules are corrected, not replaced: those are cached, and some are the
    decomposition of an operator. Only where there is no rule, on any device, there is a new one.
    """
    from torch._subclasses import fake_impls
    from torch._subclasses.fake_tensor import FakeTensorMode

    implementations: dict[Any, Any] = fake_impls.op_implementations_dict
    ctc = _aten._ctc_loss.default
    before = implementations.get(ctc)
    mode: Any = FakeTensorMode
    known = mode.dispatch

    def dispatch(
        self: Any, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = known(self, func, types, args, kwargs or {})
        rule = RULES.get(func) or _of_short_floats(func, args)
        return result if rule is None else _corrected(result, rule, args, kwargs or {})

    mode.dispatch = dispatch
    implementations[ctc] = _ctc_loss
    try:
        yield
    finally:
        mode.dispatch = known
        del implementations[ctc]
        if before is not None:
            implementations[ctc] = before


def _corrected(result: Any, rule: Rule, args: Any, kwargs: dict[str, Any]) -> Any:
    several = isinstance(result, (tuple, list))
    elements = list(result) if several else [result]
    tensors = [e for e in elements if isinstance(e, torch.Tensor)]
    if not tensors or any(t.device.type != "cpu" for t in tensors):
        return result
    for index, like in enumerate(rule(*args, **kwargs)):
        element = elements[index]
        if like is None or not isinstance(element, torch.Tensor):
            continue
        strides, dtype = like.strides(tuple(element.shape)), like.dtype or element.dtype
        if element.stride() != strides or element.dtype != dtype:
            elements[index] = element.new_empty_strided(element.shape, strides, dtype=dtype)
    return tuple(elements) if several else elements[0]


def _ctc_loss(
    _mode: Any,
    _func: Any,
    log_probs: torch.Tensor,
    _targets: torch.Tensor,
    _input_lengths: Sequence[int],
    target_lengths: Sequence[int],
    *_rest: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Results of `_ctc_loss` with integers as lengths, for which PyTorch has no rule."""
    steps, rows = log_probs.shape[:2]
    width = 2 * max(target_lengths, default=0) + 1
    return log_probs.new_empty((rows,)), log_probs.new_empty((rows, steps, width))


def _contiguous(count: int) -> Rule:
    """That many results, all contiguous."""
    return lambda *_args, **_kwargs: (Like(),) * count


def _suggested(position: int = 0) -> Rule:
    """One result, channels-last where the argument at that position is."""
    return lambda *args, **_kwargs: (Like(_prims.suggest_memory_format(args[position])),)


def _elementwise(*positions: int) -> Rule:
    """`TensorIterator` over some arguments, which broadcast; of unlike layouts earlier ones win."""

    def rule(*args: Any, **_kwargs: Any) -> tuple[Like | None, ...]:
        tensors = [args[i] for i in positions if isinstance(args[i], torch.Tensor)]
        broadcast_shapes: Any = torch.broadcast_shapes
        shape = broadcast_shapes(*(t.shape for t in tensors))
        wide = [t.as_strided(shape, _broadcast(t, shape)) for t in tensors]
        return (Like(tuple(_prims.compute_elementwise_output_strides(*wide))),)

    return rule


def _of_short_floats(func: Any, args: Any) -> Rule | None:
    """The rule for pointwise operators over several tensors of one 16-bit type, else None.

    PyTorch computes them on fake tensors by way of float32, and the copies on the way lose that an
    operand is expanded.
    """
    tensors = [position for position, arg in enumerate(args) if isinstance(arg, torch.Tensor)]
    turned = func is _aten.rsub.Tensor
    if len(tensors) < 2 or not (turned or torch.Tag.pointwise in getattr(func, "tags", ())):
        return None
    kinds = {args[position].dtype for position in tensors}
    if len(kinds) > 1 or not kinds.issubset(_SHORT):
        return None
    # Which operand comes first decides of unlike layouts.
    return _elementwise(*(tensors[::-1] if turned else tensors))


def _broadcast(tensor: torch.Tensor, shape: torch.Size) -> Strides:
    """Strides of a tensor in a larger shape; unlike those of `expand`, 0 in all new dimensions."""
    new = len(shape) - tensor.dim()
    sizes = zip(tensor.shape, tensor.stride(), shape[new:], strict=True)
    return (*[0] * new, *(0 if own != size else step for own, step, size in sizes))


def _rrelu_backward(*args: Any, **_kwargs: Any) -> tuple[Like | None, ...]:
    """In training a product of noise and gradient, else as `leaky_relu` does it."""
    lower, upper, training = args[3:6]
    first, second = (2, 0) if training and upper - lower > 1e-6 else (1, 0)
    return _elementwise(first, second)(*args)


def _soft_margin_loss_backward(*args: Any, **_kwargs: Any) -> tuple[Like | None, ...]:
    """Into memory laid out like a product of target and `exp(-target * input)`."""
    _, x, target = args[:3]
    return (Like((target * (-target * x).exp()).stride()),)


def _group_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    *_rest: Any,
) -> tuple[Like | None, ...]:
    """The statistics have the type of the scale, which may be wider than that of the input."""
    scale = next((t for t in (weight, bias) if t is not None), x)
    statistics = Like(dtype=scale.dtype)
    return Like(_prims.suggest_memory_format(x)), statistics, statistics


def _group_norm_backward(
    _grad: torch.Tensor,
    x: torch.Tensor,
    _mean: torch.Tensor,
    _rstd: torch.Tensor,
    weight: torch.Tensor | None,
    *_rest: Any,
) -> tuple[Like | None, ...]:
    """Laid out by the input; PyTorch's rule goes by the gradient, and takes the wider type.

    Up to 2.13 autograd copies the gradient into the layout of the input first. From 2.14 on the
    kernel takes it in any layout and copies it inside.
    """
    scale = Like(dtype=(x if weight is None else weight).dtype)
    return Like(_prims.suggest_memory_format(x), x.dtype), scale, scale


def _batch_norm(x: torch.Tensor, *rest: Any, **_kwargs: Any) -> tuple[Like | None, ...]:
    """Statistics are wide where a scale or a running average is, narrow where all are."""
    statistics = Like(dtype=_wide(x, *rest[:4]))
    return Like(_prims.suggest_memory_format(x)), statistics, statistics


def _batch_norm_functional(*args: Any, **_kwargs: Any) -> tuple[Like | None, ...]:
    """The same, then new running averages, of the type of the old ones."""
    return *_batch_norm(*args), *(Like(dtype=running.dtype) for running in args[3:5])


def _batch_norm_with_update_functional(*args: Any, **_kwargs: Any) -> tuple[Like | None, ...]:
    """The same, with what a kernel keeps for its backward in between."""
    results = _batch_norm_functional(*args)
    return *results[:3], None, *results[3:]


def _batch_norm_backward(
    grad: torch.Tensor, x: torch.Tensor, *_rest: Any
) -> tuple[Like | None, ...]:
    """One channel, say, can be contiguous and channels-last at once."""
    both = grad.is_contiguous() and x.is_contiguous()
    return (Like() if both else Like(_prims.suggest_memory_format(x)),)


def _wide(x: torch.Tensor, *others: Any) -> torch.dtype:
    """The type in which a norm computes that has some of its tensors in float32."""
    tensors = (t for t in others if isinstance(t, torch.Tensor))
    return torch.float32 if any(t.dtype == torch.float32 for t in tensors) else x.dtype


RULES: dict[Any, Rule] = {
    _aten._log_softmax_backward_data.default: _contiguous(1),
    _aten.huber_loss_backward.default: _contiguous(1),
    _aten.log_sigmoid_forward.default: _contiguous(2),
    _aten.mse_loss_backward.default: _contiguous(1),
    _aten.native_layer_norm_backward.default: _contiguous(3),
    _aten.normal.Tensor_Tensor: _contiguous(1),
    _aten.pow.Scalar: _contiguous(1),
    _aten.smooth_l1_loss_backward.default: _contiguous(1),
    _aten.channel_shuffle.default: _suggested(),
    _aten.max_unpool2d.default: _suggested(),
    _aten.reflection_pad2d.default: _suggested(),
    _aten.reflection_pad2d_backward.default: _suggested(1),
    _aten.reflection_pad3d.default: _suggested(),
    _aten.reflection_pad3d_backward.default: _suggested(1),
    _aten.replication_pad2d.default: _suggested(),
    _aten.replication_pad2d_backward.default: _suggested(1),
    _aten.replication_pad3d.default: _suggested(),
    _aten.replication_pad3d_backward.default: _suggested(1),
    _aten._prelu_kernel.default: _elementwise(0),
    _aten.binary_cross_entropy_backward.default: _elementwise(1),
    _aten.complex.default: _elementwise(0, 1),
    _aten.copysign.Tensor: _elementwise(0, 1),
    _aten.div.Tensor_mode: _elementwise(0, 1),
    _aten.elu_backward.default: _elementwise(0, 5),
    _aten.hardsigmoid_backward.default: _elementwise(0, 1),
    _aten.hardswish_backward.default: _elementwise(0, 1),
    _aten.hardtanh_backward.default: _elementwise(0, 1),
    _aten.heaviside.default: _elementwise(0, 1),
    _aten.leaky_relu_backward.default: _elementwise(1, 0),
    _aten.log_sigmoid_backward.default: _elementwise(0),
    _aten.logaddexp.default: _elementwise(0, 1),
    _aten.logaddexp2.default: _elementwise(0, 1),
    _aten.logical_and.default: _elementwise(0, 1),
    _aten.logical_or.default: _elementwise(0, 1),
    _aten.logical_xor.default: _elementwise(0, 1),
    _aten.logit_backward.default: _elementwise(0, 1),
    _aten.native_dropout_backward.default: _elementwise(0, 1),
    _aten.polar.default: _elementwise(0, 1),
    _aten.softplus_backward.default: _elementwise(0, 1),
    _aten.special_xlog1py.default: _elementwise(0, 1),
    _aten.threshold_backward.default: _elementwise(1, 0),
    _aten.xlogy.Tensor: _elementwise(0, 1),
    _aten.rrelu_with_noise_backward.default: _rrelu_backward,
    _aten.soft_margin_loss_backward.default: _soft_margin_loss_backward,
    _aten._batch_norm_no_update.default: _batch_norm,
    _aten._batch_norm_with_update.default: _batch_norm,
    _aten._batch_norm_with_update_functional.default: _batch_norm_with_update_functional,
    _aten._native_batch_norm_legit.default: _batch_norm,
    _aten._native_batch_norm_legit.no_stats: _batch_norm,
    _aten._native_batch_norm_legit_functional.default: _batch_norm_functional,
    _aten.native_batch_norm.default: _batch_norm,
    _aten.batch_norm_backward.default: _batch_norm_backward,
    _aten.native_batch_norm_backward.default: _batch_norm_backward,
    _aten.native_group_norm.default: _group_norm,
    _aten.native_group_norm_backward.default: _group_norm_backward,
}
