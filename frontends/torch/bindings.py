"""The shortest way from Python to the kernels of an operator.

An `OpOverload` boxes its arguments one by one, by its schema. Of most operators PyTorch has another
function for Python, written for its arguments: `torch.mul` for `aten.mul.Tensor`. It is quicker by
half a microsecond, and by two where lists of numbers are given. Which overload it ends in depends
on the arguments, so it is asked: it is called once, under a dispatch mode that notes the operator
and its arguments, and calls no kernel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_private: Any = torch._C
# Where the functions are: methods of tensors (the quickest), `torch`, `torch.nn.functional`.
_HOMES = (_private.TensorBase, _private._VariableFunctions, _private._nn)
# The function with another name than its operator.
_NAMES = {"_to_copy": "to"}
_COMPOSED: Any = (torch.ops.aten.linear.default, torch.ops.aten.matmul.default)
_known: dict[Any, Callable[..., Any]] = {}


def function_of(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Callable[..., Any]:
    """A function that calls `target` and nothing else, if it is called with arguments like these.

    Parameters
    ----------
    target
        An overload of an operator, or any other function, which is returned as it is.
    args, kwargs
        Arguments, with tensors on any device in the place of tensors. No kernel reads them.
    """
    if type(target) is not torch._ops.OpOverload:
        function: Callable[..., Any] = target
        return function
    key = (target, _look(args), tuple((name, _look(value)) for name, value in kwargs.items()))
    if key not in _known:
        found = (f for f in _candidates(target, args, kwargs) if _is(f, target, args, kwargs))
        _known[key] = next(found, target._op)
    return _known[key]


def _candidates(
    target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[Callable[..., Any]]:
    # Functions without a tensor obey `torch.device` as a context; operators do not.
    if target.namespace != "aten" or not any(map(_has_tensor, (*args, *kwargs.values()))):
        return
    name = target.overloadpacket.__name__
    for home in _HOMES:
        function = getattr(home, _NAMES.get(name, name), None)
        if function is not None:
            yield function


class Called(NamedTuple):
    """An operator that a function called, with what."""

    target: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    result: Any = None


class _EnoughError(Exception):
    """Ends a call when it is known what would have been called."""


def _again(mode: Any) -> Any:
    """A mode as a context, for what is called from inside it."""
    return mode


class _Asking(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the operators that are called, and runs none but transposes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.called: list[Called] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        called = Called(func, args, kwargs or {})
        if func in _COMPOSED:
            with _again(self):
                return func.decompose(*args, **called.kwargs)
        if func is torch.ops.aten.t.default:
            called = called._replace(result=func(*args))
        self.called.append(called)
        if called.result is None:
            raise _EnoughError
        return called.result


def called_by(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[Called]:
    """What a function calls below autograd, up to the first operator that is not a transpose.

    `linear` and `matmul` are what they are made of.
    """
    asking = _Asking()
    mode: Any = asking
    try:
        with (
            torch.no_grad(),
            _private._DisableAutocast(),
            _private._AutoDispatchBelowADInplaceOrView(),
            mode,
        ):
            function(*args, **kwargs)
    except Exception:  # also what a function says of arguments that it does not take
        pass
    return asking.called


def _is(
    function: Callable[..., Any], target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> bool:
    """Whether `function` calls `target` with just these arguments."""
    for found in called_by(function, args, kwargs)[:1]:
        given = _complete(target, args, kwargs)
        return found.target is target and _same(_complete(target, found.args, found.kwargs), given)
    return False


def _complete(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Arguments in the order of the schema, defaults filled in."""
    arguments = target._schema.arguments
    given = dict(zip((argument.name for argument in arguments), args, strict=False), **kwargs)
    return [given.get(argument.name, argument.default_value) for argument in arguments]


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        return one is other
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_same, one, other))
    return type(one) is type(other) and bool(one == other)


def _has_tensor(argument: Any) -> bool:
    if isinstance(argument, (list, tuple)):
        return any(map(_has_tensor, argument))
    return isinstance(argument, torch.Tensor)


def _look(argument: Any) -> Any:
    """What a function for Python can tell from an argument, for a key."""
    if isinstance(argument, torch.Tensor):
        return torch.Tensor, argument.dtype, argument.dim()
    if isinstance(argument, (list, tuple)):
        return tuple(map(_look, argument))
    return type(argument), str(argument)
