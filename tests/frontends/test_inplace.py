"""Operators that overwrite an argument: bits of the plain call, no memory, where it is safe."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import nn

from lowtide.frontends.torch.capture import capture
from lowtide.frontends.torch.costs.meter import measure_peak
from lowtide.frontends.torch.inplace import _BACKWARD, _POINTWISE, variant_of
from lowtide.frontends.torch.program import Call, ValueRef

CPU = torch.device("cpu")
# Arguments by operator: how many tensors, then what follows them; one tensor unless given.
_MORE: dict[str, tuple[int, tuple[Any, ...]]] = {
    "add": (2, ()), "sub": (2, ()), "mul": (2, ()), "div": (2, ()), "xlogy": (2, ()),
    "maximum": (2, ()), "minimum": (2, ()), "clamp_max": (2, ()), "clamp_min": (2, ()),
    "bitwise_and": (2, ()), "bitwise_or": (2, ()), "bitwise_xor": (2, ()),
    "logical_and": (2, ()), "logical_or": (2, ()),
    "sigmoid_backward": (2, ()), "tanh_backward": (2, ()), "silu_backward": (2, ()),
    "gelu_backward": (2, ()),
    "addcdiv": (3, ()), "addcmul": (3, ()), "lerp": (3, ()), "pow": (1, (3.0,)),
    "threshold_backward": (2, (0.0,)),
    "hardsigmoid_backward": (2, ()), "hardtanh_backward": (2, (-1.0, 1.0)),
    "leaky_relu_backward": (2, (0.1, False)), "softplus_backward": (2, (1.0, 20.0)),
    "clamp": (1, (-0.5, 0.5)), "logit": (1, (1e-3,)),
}  # fmt: skip
_OVERLOAD = {
    "add": "Tensor", "sub": "Tensor", "mul": "Tensor", "div": "Tensor", "xlogy": "Tensor",
    "bitwise_and": "Tensor", "bitwise_or": "Tensor", "bitwise_xor": "Tensor",
    "pow": "Tensor_Scalar", "lerp": "Tensor", "clamp_max": "Tensor", "clamp_min": "Tensor",
}  # fmt: skip
_WHOLE = {"bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not"}
_TRUTH = {"logical_and", "logical_or", "logical_not"}
_APART = {"where", "masked_fill", "elu_backward"}  # tested below


def _tensors(name: str, count: int, shape: tuple[int, ...]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(len(name))
    found = [torch.randn(shape, generator=generator) for _ in range(count)]
    if name in _WHOLE:
        return [(t * 100).to(torch.int64) for t in found]
    return [t > 0 for t in found] if name in _TRUTH else found


def _check(target: Any, tensors: list[torch.Tensor], rest: tuple[Any, ...]) -> list[int]:
    """Places of `target` that can be overwritten, each one compared with the plain call."""
    call = Call(target, (*map(ValueRef, range(len(tensors))), *rest), {}, (9,), False)
    plain = measure_peak(lambda: target(*tensors, *rest), collect=False)
    expected = plain.result
    done = []
    for place, tensor in enumerate(tensors):
        variant = variant_of(call, place, CPU)
        if variant is None:
            continue
        args = [t.clone(memory_format=torch.preserve_format) for t in tensors]
        again = {variant.out: args[place]} if variant.out else {}
        run = functools.partial(variant.target, *args, *rest, **again)
        reading = measure_peak(run, collect=False)
        assert reading.result is args[place]
        assert reading.peak_bytes == plain.peak_bytes - expected.nbytes
        assert reading.result.stride() == tensor.stride()
        assert torch.equal(
            args[place].contiguous().view(torch.uint8), expected.contiguous().view(torch.uint8)
        )
        done.append(place)
    return done


@pytest.mark.parametrize("shape", [(37, 5), (64, 64), (3, 1, 7)], ids=str)
@pytest.mark.parametrize("name", sorted((_POINTWISE | _BACKWARD) - _APART))
def test_same_bits_and_no_memory(name: str, shape: tuple[int, ...]) -> None:
    """Every listed operator: any argument it may overwrite holds the plain call's bits after."""
    count, rest = _MORE.get(name, (1, ()))
    target = getattr(getattr(torch.ops.aten, name), _OVERLOAD.get(name, "default"))
    tensors = _tensors(name, count, shape)
    places = _check(target, tensors, rest)
    assert places == ([0] if name in _BACKWARD else list(range(count)))
    turned = [t.transpose(0, -1).contiguous().transpose(0, -1) for t in tensors]
    assert _check(target, turned, rest) == places


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(5, 1), (7, 1000), (3, 4, 70), (2, 3, 5, 6)], ids=str)
def test_softmax_by_rows(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Softmax and its gradient write over what they read, along any dimension."""
    aten = torch.ops.aten
    x, gradient = (t.to(dtype) for t in _tensors("softmax", 2, shape))
    for dim in range(len(shape)):
        for log in ("", "_log"):
            forward, backward = (getattr(aten, f"{log}_softmax{s}") for s in ("", "_backward_data"))
            assert _check(forward.default, [x], (dim, False)) == [0]
            y = forward(x, dim, False)
            assert _check(backward.default, [gradient, y], (dim, dtype)) == [0]
    call = Call(aten._softmax.default, (ValueRef(0), 1, False), {}, (9,), False)
    assert variant_of(call, 0, torch.device("cuda")) is None


def test_masks_and_numbers() -> None:
    """Forms with a mask or a number: only what they have a kernel for."""
    aten = torch.ops.aten
    x, mask = torch.randn(9, 8), torch.randn(9, 8) > 0
    assert _check(aten.masked_fill.Scalar, [x, mask], (-1.5,)) == [0]
    for name in ("add", "sub", "mul", "div"):
        assert _check(getattr(aten, name).Scalar, [x], (3,)) == [0]
        assert _check(getattr(aten, name).Tensor, [x], (0.3,)) == [0]
        for narrow in (torch.bfloat16, torch.float16):
            for form in ("Scalar", "Tensor"):
                assert _check(getattr(getattr(aten, name), form), [x.to(narrow)], (0.7,)) == [0]
    call = Call(aten.where.self, (ValueRef(0), ValueRef(1), ValueRef(2)), {}, (9,), False)
    variant = variant_of(call, 2, CPU)
    assert variant is not None
    y = torch.randn(9, 8)
    expected = torch.where(mask, x, y)
    assert measure_peak(functools.partial(variant.target, mask, x, y, out=y)).peak_bytes == 0
    assert torch.equal(y, expected)
    args = (ValueRef(0), 1, 1, 1, False, ValueRef(1))
    elu = Call(aten.elu_backward.default, args, {}, (9,), False)
    variant = variant_of(elu, 0, CPU)
    assert variant is not None
    expected = aten.elu_backward(x, 1, 1, 1, False, y)
    assert torch.equal(variant.target(x, 1, 1, 1, False, y, **{variant.out: x}), expected)
    assert torch.equal(x, expected)
    assert variant_of(elu, 1, CPU) is None
    # These would compute elsewhere and copy, or read other places than they write.
    assert variant_of(Call(aten.cumsum.default, (ValueRef(0), 0), {}, (9,), False), 0, CPU) is None
    assert variant_of(Call(aten.rsub.Scalar, (ValueRef(0), 1), {}, (9,), False), 0, CPU) is None


class _Traps(nn.Module):
    """Elementwise ops that must not overwrite what they read, and some that may."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.randn(6, 6))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """A result that is returned, a transposed sum, a broadcast, a slice, another type."""
        given = x.exp()  # returned below: it must stay
        twice = given * 2
        turned = (x @ self.a).tanh()
        sum_ = turned + turned.t()
        row = (x @ self.a).sum(0).cos()
        wide = row + sum_
        part = (x @ self.a)[:, :3] * 3
        short = (x @ self.a).half() + 1
        loss = (twice + wide).sum() + part.sum() + short.float().sum()
        return loss, given.detach()


def test_where_it_is_safe() -> None:
    """Inputs, results, other views of the same memory, broadcasts and casts are left alone."""
    captured = capture(_Traps(), (torch.randn(6, 6),), times="none")
    graph = captured.graph
    taken = {op.name: op.overwrites for op in graph.ops if op.phase == "forward"}
    names = {name: graph.tensors[t].name for name, t in taken.items() if t >= 0}
    assert "exp" not in names.values()
    assert names["tanh"] == "mm"
    assert "tanh" not in names.values()
    assert names["add_1"] == "add"  # wide: the sum, not the row that is spread over it
    assert "cos" not in names.values()
    assert "_to_copy" not in names
    for op in graph.ops:
        if op.overwrites >= 0:
            users = [o for o in graph.ops if op.overwrites in o.inputs]
            assert users[-1] is op
            assert op.overwrites not in graph.arrays.producer[graph.arrays.producer < 0]
