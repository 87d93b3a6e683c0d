"""Batch norm on CUDA by the kernel that eager PyTorch chooses.

A trace shows PyTorch's own kernel, where eager PyTorch runs that of cuDNN whenever it can, which
rounds otherwise. `_batch_norm_with_update` makes the same choice by the same rule when it runs, and
hands its backward what cuDNN reserves.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from .program import Call, ValueMeta, ValueRef
from .rng import arguments

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .values import Line, Values

_aten: Any = torch.ops.aten
_FORWARD: Any = _aten._native_batch_norm_legit_functional.default
_BACKWARD: Any = _aten.native_batch_norm_backward.default


def chosen_norms(
    lines: Sequence[Line], values: Values, kinds: tuple[str, ...] = ("cuda",)
) -> list[Line]:
    """The lines, with batch norms in training mode on devices of these kinds replaced."""
    reserves: dict[int, int] = {}
    found = []
    for line in lines:
        if line.call.target is _FORWARD:
            call = _forward(line, values, reserves, kinds)
            found.append(line if call is None else replace(line, call=call))
        elif line.call.target is _BACKWARD:
            call = _backward(line, reserves)
            found.append(line if call is None else replace(line, call=call))
        else:
            found.append(line)
    return found


def _forward(
    line: Line, values: Values, reserves: dict[int, int], kinds: tuple[str, ...]
) -> Call | None:
    given = arguments(line.call)
    out, mean, scale, new_mean, new_var = line.call.outputs
    if out is None or mean is None or given["training"] is not True:
        return None
    device = values.meta[out].device
    if device.type not in kinds:
        return None
    # How much cuDNN reserves is known when it runs; mostly nothing.
    empty = ValueMeta((0,), (1,), 0, torch.uint8, device)
    reserve = reserves[mean] = values.new(empty, f"{line.name}.reserve")
    names = ("input", "weight", "bias", "running_mean", "running_var", "momentum", "eps")
    return Call(
        _aten._batch_norm_with_update_functional.default,
        tuple(given[name] for name in names),
        {},
        (out, mean, scale, reserve, new_mean, new_var),
        unpack=True,
    )


def _backward(line: Line, reserves: dict[int, int]) -> Call | None:
    given = arguments(line.call)
    mean = given["save_mean"]
    if not isinstance(mean, ValueRef) or mean.index not in reserves:
        return None
    names = ("grad_out", "input", "weight", "running_mean", "running_var", "save_mean")
    args = (
        *(given[name] for name in names),
        *(given["save_invstd"], given["train"], given["eps"], given["output_mask"]),
        ValueRef(reserves[mean.index]),
    )
    return replace(line.call, target=_aten.batch_norm_backward.default, args=args, kwargs={})
