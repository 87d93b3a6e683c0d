"""Functions that stand for overloads of operators."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lowtide.frontends.torch.bindings import function_of

aten: Any = torch.ops.aten


class _Noting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes every operator that runs."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


X = torch.arange(12.0).reshape(3, 4)
CALLS: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
    (aten.mul.Tensor, (X, X), {}),
    (aten.mul.Tensor, (X, 2.0), {}),
    (aten.mul_.Tensor, (X.clone(), 3), {}),
    (aten.mul.out, (X, X), {"out": X.clone()}),
    (aten.add.Tensor, (X, X), {"alpha": 2}),
    (aten.div.Scalar, (X, 3), {}),
    (aten.pow.Tensor_Scalar, (X, 2), {}),
    (aten.sum.dim_IntList, (X, [0], True), {}),
    (aten.mean.default, (X,), {}),
    (aten.addmm.default, (X[0, :3], X, X.t()), {}),
    (aten._to_copy.default, (X,), {"dtype": torch.bfloat16}),
    (aten._to_copy.default, (X,), {"dtype": torch.float32}),
    (aten.view.default, (X, [2, 6]), {}),
    (aten.split.Tensor, (X, 2), {}),
    (aten.cat.default, ([X, X], 1), {}),
    (aten.native_layer_norm.default, (X, [4], None, None, 1e-5), {}),
    (aten.threshold_backward.default, (X, X, 0), {}),
    (aten.convolution.default,
     (X.view(1, 1, 3, 4), X.view(3, 1, 2, 2), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1), {}),
]  # fmt: skip


@pytest.mark.parametrize(("target", "args", "kwargs"), CALLS)
def test_the_same_operator_runs(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Whatever function it is, it runs the operator that was asked for, with the same result."""
    function = function_of(target, args, kwargs)
    with torch.no_grad(), torch._C._AutoDispatchBelowADInplaceOrView(), _Noting() as mode:
        found = function(*args, **kwargs)
    assert mode.seen[0] is target
    if target is not aten.mul_.Tensor:
        wanted = target(*args, **kwargs)
        torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)


def test_most_have_a_function_of_their_own() -> None:
    """The quick functions are found, and not taken where they mean another overload."""
    assert function_of(aten.mul.Tensor, (X, X), {}) is torch._C.TensorBase.mul
    assert function_of(aten.cat.default, ([X], 0), {}) == torch.cat
    assert function_of(aten.div.Scalar, (X, 3), {}) is aten.div.Scalar._op
    same_type = (aten._to_copy.default, (X,), {"dtype": torch.float32})
    assert function_of(*same_type) is aten._to_copy.default._op


def test_asking_runs_nothing() -> None:
    """Arguments are left alone, also by operators that change them."""
    x = torch.ones(3)
    version = x._version
    function_of(aten.add_.Tensor, (x, 1), {})
    assert x.tolist() == [1, 1, 1]
    assert x._version == version


def test_factories_stay_where_they_are_told() -> None:
    """`torch.device` as a context moves `torch.ones`, and no operator of a plan."""
    function = function_of(aten.ones.default, ([2],), {"device": torch.device("cpu")})
    other = function_of(aten.ones.default, ([2],), {})
    with torch.device("meta"):
        assert function([2], device=torch.device("cpu")).device.type == "cpu"
        assert other([2]).device.type == "cpu"


def test_other_functions_are_themselves() -> None:
    """A Python function stays what it is."""
    assert function_of(len, ([1],), {}) is len
