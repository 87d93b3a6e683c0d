"""Random state: saved before an op draws, put back when the op runs again.

A random op that runs again must draw what it drew the first time and leave the generator as it
found it. On the CPU a state is a tensor of 5056 bytes: one lives from the first run to the last,
a second one for the time of a rerun. On CUDA the states are a few bytes of host memory.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from ...solver.errors import ReplayError

if TYPE_CHECKING:
    from collections.abc import Callable


def generator_of(device: torch.device) -> Any:
    """The default generator of `device`.

    Raises
    ------
    ReplayError
        If the device has none that can be saved.
    """
    if device.type == "cpu":
        return torch.default_generator
    module: Any = getattr(torch, device.type, None)
    generators = getattr(module, "default_generators", None)
    if generators is None:
        raise ReplayError(f"random ops on {device} cannot be replayed: no default generator there")
    if not generators:
        module.init()
        generators = module.default_generators
    index = device.index if device.index is not None else module.current_device()
    return generators[index]


@cache
def state_functions(
    device: torch.device,
) -> tuple[Callable[[], torch.Tensor], Callable[[torch.Tensor], Any]]:
    """Functions that read and set the generator state of `device`."""
    generator = generator_of(device)
    return generator.get_state, generator.set_state


def random_states() -> list[torch.Tensor]:
    """States of the CPU generator and of every CUDA generator in use, to compare two runs."""
    states = [torch.get_rng_state()]
    cuda: Any = torch.cuda
    if cuda.is_available() and cuda.is_initialized():
        states.extend(cuda.get_rng_state_all())
    return states


def set_random_states(states: list[torch.Tensor]) -> None:
    """Undo what was drawn since `random_states` returned `states`."""
    torch.set_rng_state(states[0])
    if len(states) > 1:
        torch.cuda.set_rng_state_all(states[1:])


def state_bytes(device: torch.device) -> int:
    """Bytes of the saved state of a device's generator; it is saved in host memory."""
    return int(torch.default_generator.get_state().numel()) if device.type == "cpu" else 16
