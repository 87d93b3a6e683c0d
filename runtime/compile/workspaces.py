"""Memory that a library takes inside one of its calls, measured once for each kind of call.

The call runs alone, on tensors made up for it, and gives them back at once.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from ...frontends.torch.costs.meter import measure_peak
from ...frontends.torch.costs.synthetic import random_like, zeros_like
from ...frontends.torch.program import ValueMeta

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_log = logging.getLogger(__name__)
_known: dict[tuple[Any, ...], int] = {}


def workspace_bytes(
    name: str,
    call: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    device: torch.device,
) -> int:
    """Largest number of bytes that a call takes beyond its arguments and results.

    Parameters
    ----------
    name
        Of what is called.
    call, args, kwargs
        The call; tensors may be fake.
    device
        Whose memory is counted.

    Returns
    -------
    int
        0 where the call cannot be run alone.
    """
    leaves, spec = pytree.tree_flatten((tuple(args), dict(kwargs)))
    key = (name, device, str(spec), *map(_look, leaves))
    if key not in _known:
        with _disable_current_modes(), torch.no_grad():
            try:
                _known[key] = _measured(call, [_real(item) for item in leaves], spec, device)
            except Exception as error:  # a call may need more than the looks of its arguments
                _log.info("the workspace of %s is not known: %r", name, error)
                return 0
    return _known[key]


def _measured(call: Callable[..., Any], leaves: list[Any], spec: Any, device: torch.device) -> int:
    args, kwargs = pytree.tree_unflatten(leaves, spec)
    where = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(where, device_type=device.type if where else "cuda"):
        if where:
            call(*args, **kwargs)  # handles of libraries are made in the first run and stay
        reading = measure_peak(lambda: call(*args, **kwargs), device, collect=False)
    given = {_key(item) for item in leaves if isinstance(item, torch.Tensor)}
    made = {
        _key(item): item.untyped_storage().nbytes()
        for item in pytree.tree_leaves(reading.result)
        if isinstance(item, torch.Tensor) and item.device.type == device.type
    }
    return max(0, reading.peak_bytes - sum(n for k, n in made.items() if k not in given))


def _key(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _look(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), tuple(value.stride()), value.dtype, value.device
    return repr(value)


def _real(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    shape, stride = tuple(map(int, value.shape)), tuple(map(int, value.stride()))
    meta = ValueMeta(shape, stride, 0, value.dtype, value.device)
    wide = value.dtype.is_floating_point or value.dtype.is_complex
    return random_like(meta) if wide else zeros_like(meta)
