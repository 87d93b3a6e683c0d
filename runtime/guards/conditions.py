"""Conditions of a guard as text: what one tensor, number, flag or word has to be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...frontends.torch.interface import LiteralGuard

if TYPE_CHECKING:
    import torch

    from ...frontends.torch.interface import TensorGuard
    from ..generate.literals import Namespace


def leaf_test(name: str, guard: TensorGuard | LiteralGuard, names: Namespace, exact: bool) -> str:
    """What an argument has to be; `exact`: one that had a gradient has one."""
    if isinstance(guard, LiteralGuard):
        value = guard.value
        if value is None or value is True or value is False:
            return f"{name} is {value}"
        if type(value) in (int, str):
            return f"type({name}) is {type(value).__name__} and {name} == {value!r}"
        return f"same_literal({name}, {names.bind(value, 'literal')})"
    words = [
        f"isinstance({name}, Tensor) and not {name}.is_inference()",
        tensor_test(name, guard.shape, guard.dtype, guard.device, names),
        stride_test(name, guard.stride),
    ]
    if not guard.requires_grad:
        words.append(f"not {name}.requires_grad")
    elif exact:
        words.append(f"{name}.requires_grad")
    return " and ".join(words)


def setting_test(text: str, value: float | str | None, names: Namespace) -> str:
    """Whether a number, flag or word is another one, or one of another type: 2 and 2.0 differ."""
    if value is None or value is True or value is False:
        return f"{text} is not {value}"
    known = names.bind(value, "setting")  # mostly it is the very object that it was
    other = f"(type(v) is not {type(value).__name__} or v != {known})"
    if value != value:  # not a number
        other = f"not same_literal(v, {known})"
    return f"(v := {text}) is not {known} and {other}"


def tensor_test(
    name: str,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    names: Namespace,
) -> str:
    """Shape, data type and device of a tensor."""
    return (
        f"{name}.shape == {tuple(shape)!r} and {name}.dtype is {names.bind(dtype, str(dtype))} "
        f"and {name}.device == {names.bind(device, str(device))}"
    )


def stride_test(name: str, stride: tuple[int, ...]) -> str:
    """Strides of a tensor, in the dimensions where they matter."""
    return f"({name}.stride() == {tuple(stride)!r} or same_strides({name}, {tuple(stride)!r}))"
