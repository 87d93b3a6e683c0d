"""Calls that a trace cannot show as they are, made as others with the same results, bit for bit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ...solver.errors import CaptureError
from .validity import REQUIRE

if TYPE_CHECKING:
    from collections.abc import Callable

# Up to here every integer has a number of the type: nothing is rounded.
_EXACT = {torch.float16: 2**11, torch.bfloat16: 2**8, torch.float32: 2**24, torch.float64: 2**53}
_torch: Any = torch
_GAUSSIAN = ("input", "target", "var")
_RRELU = ("input", "lower", "upper", "training", "inplace")
_CTC = ("log_probs", "targets", "input_lengths", "target_lengths", "blank", "reduction",
        "zero_infinity")  # fmt: skip


def call(
    func: Callable[..., Any],
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    origin: str,
) -> Any:
    """Call `func`, which the user calls at `origin`, or what has the same results.

    Raises
    ------
    CaptureError
        If nothing has.
    """
    if name == "random_":
        return _random(func, args, kwargs, origin)
    if name == "ctc_loss" and func is torch.nn.functional.ctc_loss:
        return _ctc_loss(func, args, kwargs, origin)
    if name == "gaussian_nll_loss":
        return _gaussian_nll_loss(func, args, kwargs, origin)
    if name == "rrelu":
        return _rrelu(func, args, kwargs)
    return func(*args, **kwargs)


def _gaussian_nll_loss(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], origin: str
) -> Any:
    """The question whether a variance is negative, which raises, as an operator that raises."""
    variance = {**dict(zip(_GAUSSIAN, args, strict=False)), **kwargs}["var"]
    if not isinstance(variance, torch.Tensor):
        return func(*args, **kwargs)
    REQUIRE(torch.any(variance < 0), False, f"{origin}: var has negative entry/entries")
    known = _torch.any
    _torch.any = lambda *_: False
    try:
        return func(*args, **kwargs)
    finally:
        _torch.any = known


def _rrelu(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """On a CPU results are contiguous; in a trace they would be laid out like the input."""
    given = {**dict(zip(_RRELU, args, strict=False)), **kwargs}
    tensor = given["input"]
    # In place (the fifth argument of `torch.rrelu` is a generator) the layout stays.
    if tensor.device.type != "cpu" or tensor.is_contiguous() or given.get("inplace"):
        return func(*args, **kwargs)
    lower, upper = given.get("lower", 1 / 8), given.get("upper", 1 / 3)
    if given.get("training", False):
        return torch.rrelu(tensor.contiguous(), lower, upper, training=True)
    # Its backward reads the input as it is laid out.
    return torch.nn.functional.leaky_relu(tensor, (lower + upper) / 2).contiguous()


def _random(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], origin: str
) -> Any:
    """`x.random_(from, to)`, an operator whose name is no Python: `x.random_(to - from)`, a sum."""
    given = [*args[1:], *(kwargs[key] for key in ("from", "to") if key in kwargs)]
    if len(given) < 2:
        return func(*args, **kwargs)
    tensor, (low, high) = args[0], given
    most = _EXACT.get(tensor.dtype)
    if high is None or (most is not None and max(abs(low), abs(high), high - low) > most):
        raise CaptureError(
            f"{origin}: random_({low}, {high}) on {tensor.dtype} cannot be traced exactly; use "
            "torch.randint, or random_(to)"
        )
    drawn = func(tensor, high - low)
    return drawn.add_(low) if low else drawn


def _ctc_loss(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], origin: str
) -> Any:
    """The mean of CTC losses by lengths of targets, of which PyTorch makes a tensor unseen."""
    given = {**dict(zip(_CTC, args, strict=False)), **kwargs}
    lengths = given["target_lengths"]
    if any(isinstance(given[name], torch.Tensor) for name in ("input_lengths", "target_lengths")):
        raise CaptureError(
            f"{origin}: ctc_loss asks for the values of its lengths, which decide of sizes; give "
            "them as tuples of integers (lengths.tolist(), before the step)"
        )
    if given.get("reduction", "mean") != "mean":
        return func(*args, **kwargs)
    losses = func(**{**given, "reduction": "none"})
    lengths = [max(int(length), 1) for length in lengths]
    return (losses / torch.tensor(lengths, dtype=losses.dtype, device=losses.device)).mean()
