"""Fake tensors of a trace have the strides and types that the kernels of a CPU give."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.torch_version import TorchVersion
from torch.utils._pytree import tree_leaves, tree_map

from lowtide.frontends.torch.layouts import RULES, true_results

if TYPE_CHECKING:
    from collections.abc import Iterator

_aten: Any = torch.ops.aten
_KINDS = ("contiguous", "channels_last", "permuted", "swapped", "gaps", "expanded")
_IMAGES = ((4, 8, 6, 6), (4, 1, 6, 6), (4, 8, 1, 1), (1, 8, 6, 6), (4, 8, 6, 1))
_BROADCASTING = (
    "complex", "copysign", "div", "heaviside", "logaddexp", "logaddexp2",
    "logical_and", "logical_or", "logical_xor", "polar", "special_xlog1py", "xlogy",
)  # fmt: skip
_ALIKE = ("complex", "heaviside", "polar")  # these want two of one type
_SHAPES = (*_IMAGES, (2, 4, 3, 4, 2), (2, 1, 3, 4, 2), (4, 5, 7), (4, 5, 1), (4, 5), (1, 5))


def laid_out(shape: tuple[int, ...], kind: str, dtype: torch.dtype) -> torch.Tensor:
    """Positive numbers in a layout of that kind."""
    if kind == "expanded":
        return torch.rand(shape[-1:]).add(0.1).to(dtype).expand(shape)
    x = torch.rand(shape).add(0.1).to(dtype)
    if kind == "channels_last":
        return x.movedim(1, -1).contiguous().movedim(-1, 1)
    if kind == "permuted":
        return x.transpose(0, -1).contiguous().transpose(0, -1)
    if kind == "swapped":
        return x.mT.contiguous().mT
    if kind == "gaps":
        return x.repeat_interleave(2, -1)[..., ::2]
    return x


def pairs(
    dtype: torch.dtype, step: int, shapes: tuple[tuple[int, ...], ...] = _SHAPES
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Two tensors of one shape, in one layout each: every `step`-th of all combinations."""
    every = itertools.product(_KINDS, _KINDS, shapes)
    for one, two, shape in itertools.islice(every, 0, None, step):
        yield laid_out(shape, one, dtype), laid_out(shape, two, dtype)


def images(dtype: torch.dtype) -> Iterator[torch.Tensor]:
    """Batches of images in every layout."""
    for shape, kind in itertools.product(_IMAGES, _KINDS):
        yield laid_out(shape, kind, dtype)


def calls(op: Any, dtype: torch.dtype, step: int = 1) -> Iterator[tuple[Any, ...]]:
    """Arguments for an operator that has a rule; of many combinations every `step`-th."""
    name = op._schema.name.removeprefix("aten::")
    if "batch_norm" in name:
        yield from _batch_norms(op, name, dtype, step)
    elif name.startswith("native_group_norm"):
        yield from _group_norms(name, dtype, step)
    elif name == "native_layer_norm_backward":
        for grad, x in pairs(dtype, step, ((4, 5, 7), (4, 5, 1), (1, 5, 7))):
            for kind in ("contiguous", "permuted"):
                normed = tuple(x.shape[1:])
                w = laid_out(normed, kind, dtype)
                mean = torch.zeros(x.shape[0], 1, 1, dtype=dtype)
                yield grad, x, normed, mean, mean, w, w, [True, True, True]
    elif name == "_log_softmax_backward_data":
        for grad, x in pairs(dtype, step):
            yield grad, x, 1, dtype
    elif name in ("huber_loss_backward", "smooth_l1_loss_backward", "mse_loss_backward"):
        more: tuple[float, ...] = () if name.startswith("mse") else (1.0,)
        for x, y in pairs(dtype, step):
            yield x, x, y, 0, *more
            yield torch.ones((), dtype=dtype), x, y, 1, *more
    elif name == "native_dropout_backward":
        for grad, x in pairs(dtype, step):
            yield grad, x > 0.5, 2.0
    elif name in ("log_sigmoid_forward", "pow"):
        every = itertools.product(_SHAPES, _KINDS)
        for size, kind in itertools.islice(every, 0, None, min(step, 5)):
            x = laid_out(size, kind, dtype)
            yield (x,) if name != "pow" else (2.0, x)
    elif name == "normal":
        yield from pairs(dtype, step)
    elif name == "channel_shuffle":
        for x in images(dtype):
            yield x, x.shape[1] // 2 or 1
    elif name == "max_unpool2d":
        for x in images(dtype):
            yield x, torch.zeros_like(x, dtype=torch.int64), [12, 12]
            yield x[0], torch.zeros_like(x[0], dtype=torch.int64), [12, 12]
    elif "_pad" in name:
        yield from _pads(name, dtype, step)
    elif name.endswith("_backward") or name == "_prelu_kernel":
        for x, y in pairs(dtype, step):
            yield from _activations(name, x, y)
    else:
        assert name in _BROADCASTING
        if name in _ALIKE and dtype == torch.bfloat16:
            dtype = torch.float64
        numbers = torch.tensor(2.0, dtype=dtype), torch.tensor(3.0, dtype=torch.float64)
        for x, y in pairs(dtype, 1 if step == 1 else 2 * step + 3):
            yield x, y
            yield x, y[:1]
            yield x[..., :1], y[0]
            if name not in _ALIKE:
                for number in numbers:
                    yield x, number
                    yield number, y


def _activations(name: str, x: torch.Tensor, y: torch.Tensor) -> Iterator[tuple[Any, ...]]:
    """Arguments in layouts that differ: gradient and input, and where there is one a third."""
    one = torch.ones((), dtype=x.dtype)
    if name in ("hardsigmoid_backward", "hardswish_backward"):
        yield x, y
    elif name in ("hardtanh_backward", "softplus_backward"):
        yield x, y, 1.0, 20.0
    elif name in ("leaky_relu_backward", "threshold_backward", "logit_backward"):
        yield x, y, 0.1, *([False] if name.startswith("leaky") else [])
    elif name == "elu_backward":
        yield x, 1.0, 1.0, 1.0, False, y
    elif name == "log_sigmoid_backward":
        yield x, y, y.contiguous()
    elif name == "rrelu_with_noise_backward":
        yield x, y, x.contiguous(), 0.1, 0.3, True, False
        yield x, y, x.contiguous(), 0.1, 0.3, False, False
        yield x.contiguous(), x, y, 0.1, 0.3, True, False
    elif name == "soft_margin_loss_backward":
        yield one, x, y, 1
        yield x, x, y, 0
    elif name == "binary_cross_entropy_backward":
        x, y = x.clamp(0.1, 0.9), y.clamp(0.1, 0.9)
        yield one, x, y, None, 1
        yield y, x, x.contiguous(), y, 0
    else:
        assert name == "_prelu_kernel"
        yield x, y
        yield x, y[:1, :1]


def _pads(name: str, dtype: torch.dtype, step: int) -> Iterator[tuple[Any, ...]]:
    dims = 3 if "3d" in name else 2
    images = [s for s in _SHAPES if len(s) == dims + 2 and min(s[2:]) > 1]
    volumes = [s for s in _SHAPES if len(s) == dims + 1 and min(s[1:]) > 1]
    every = itertools.product(_KINDS, _KINDS, (*images, *volumes))
    for kind, other, shape in itertools.islice(every, 0, None, min(step, 5)):
        x = laid_out(shape, kind, dtype)
        larger = (*shape[:-dims], *(n + 2 for n in shape[-dims:]))
        pads = [1] * 2 * dims
        yield (laid_out(larger, other, dtype), x, pads) if "backward" in name else (x, pads)


def _group_norms(name: str, dtype: torch.dtype, step: int) -> Iterator[tuple[Any, ...]]:
    backward = "backward" in name
    others = _KINDS if backward else _KINDS[:1]
    every = itertools.product(_KINDS, others, (*_IMAGES, (2, 4, 3, 4, 2), (4, 5, 7)))
    for kind, other, shape in itertools.islice(every, 0, None, step if backward else 1):
        x, (rows, channels, *image) = laid_out(shape, kind, dtype), shape
        for scale in {dtype, torch.float32} if dtype == torch.bfloat16 else {dtype}:
            w = torch.ones(channels, dtype=scale)
            sizes = (rows, channels, math.prod(image), 1)
            if not backward:
                yield x, w, w, *sizes, 1e-5
                continue
            grad = laid_out(shape, other, dtype)
            if TorchVersion(torch.__version__) < "2.14":
                # Autograd gives the operator nothing else.
                like = torch._prims_common.suggest_memory_format(x)
                grad, x = (t.contiguous(memory_format=like) for t in (grad, x))
            mean = torch.zeros(rows, 1, dtype=scale)
            yield grad, x, mean, mean, w, *sizes, [True, True, True]


def _batch_norms(op: Any, name: str, dtype: torch.dtype, step: int) -> Iterator[tuple[Any, ...]]:
    backward = "backward" in name
    shapes = tuple(s for s in _SHAPES if s != (1, 5))  # no statistics of one number
    for x, grad in pairs(dtype, step, shapes):
        for train, scale in itertools.product((True, False), {dtype, torch.float32}):
            if dtype == torch.float64 and scale != dtype:
                continue
            w = torch.ones(x.shape[1], dtype=scale)
            mean, var = torch.zeros_like(w), torch.ones_like(w)
            if backward:
                saved = (mean, var) if train else (mean[:0], var[:0])
                rest = (train, 1e-5, [True, True, True])
                if name == "batch_norm_backward":
                    extra = torch.empty(0, dtype=torch.uint8)
                    yield grad, x, w, mean, var, *saved, train, 1e-5, [True] * 3, extra
                else:
                    yield grad, x, w, mean, var, *saved, *rest
            elif "update" in name:
                yield x, w, w, mean, var, 0.1, 1e-5
            elif op is _aten._native_batch_norm_legit.no_stats:
                yield x, w, w, True, 0.1, 1e-5
            else:
                yield x, w, w, mean, var, train, 0.1, 1e-5


def seen(result: Any) -> list[tuple[Any, ...]]:
    """Shape, strides and type of each tensor among the results.

    Strides of dimensions of one element say nothing of where elements lie.
    """
    tensors = (t for t in tree_leaves(result) if isinstance(t, torch.Tensor))
    return [
        (
            tuple(t.shape),
            tuple(step for size, step in zip(t.shape, t.stride(), strict=True) if size > 1),
            t.dtype,
        )
        for t in tensors
    ]


def compare(op: Any, dtype: torch.dtype, step: int) -> int:
    """Compare fake and real results of some calls; returns of how many."""
    mode = FakeTensorMode()
    kwargs = {"rounding_mode": "floor"} if op is _aten.div.Tensor_mode else {}
    compared = 0
    for args in calls(op, dtype, step):
        try:
            real = op(*args, **kwargs)
        except RuntimeError as error:
            if "is_contiguous" not in str(error):
                raise
            # Group norm gives its operator no other input.
            continue
        fakes = tree_map(lambda a: mode.from_tensor(a) if torch.is_tensor(a) else a, args)
        with true_results():
            fake = op(*fakes, **kwargs)
        inputs = [(tuple(t.shape), t.stride()) for t in args if torch.is_tensor(t)]
        assert seen(fake) == seen(real), inputs
        compared += 1
    return compared


@pytest.mark.parametrize("op", RULES, ids=str)
def test_rules_are_what_kernels_do(op: Any) -> None:
    """Strides, also of dimensions with one element, and types, for mixed layouts and types."""
    assert compare(op, torch.float32, 13) >= 8
    assert compare(op, torch.bfloat16, 53) >= 2
    assert compare(op, torch.float64, 97) >= 2


@pytest.mark.slow
@pytest.mark.parametrize("op", RULES, ids=str)
def test_every_layout(op: Any) -> None:
    """The same for all calls: thousands."""
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        assert compare(op, dtype, 1) >= 10


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["add", "mul", "rsub", "maximum", "div"])
def test_short_floats_of_unlike_layouts(name: str, dtype: torch.dtype) -> None:
    """An expanded operand and a permuted one: the result follows the second, as in float32."""
    permuted = torch.randn(5, 4, 3, 2).to(dtype).permute(3, 2, 1, 0)
    others = [
        torch.randn(2, 3, 1, 5).to(dtype).expand(2, 3, 4, 5),
        torch.randn(1, 3, 1, 1).to(dtype).expand(2, 3, 4, 5),
        torch.randn(2, 3, 4, 5).to(dtype),
        torch.randn(5).to(dtype),
    ]
    for one, two in [(a, b) for x in others for a, b in ((x, permuted), (permuted, x))]:
        op = getattr(torch, name)
        real = op(one, two)
        with true_results(), FakeTensorMode() as mode:
            fake = op(mode.from_tensor(one), mode.from_tensor(two))
        assert fake.stride() == real.stride()
