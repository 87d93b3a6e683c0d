"""What came before a step's own gradient, so that sums can begin with it.

Autograd adds up what arrives for a tensor: in plain PyTorch the gradients of a weight's uses one by
one, each to what a loss outside of the module has left there. A step that sums up its uses by
itself must therefore begin its sum with what was there. The engine does not tell; but before the
step begins, each such tensor is sent a probe, a tensor without memory. If something is there, the
engine asks the probe to be added to it, and the probe keeps it. When the step's sum arrives, the
engine asks for it to be added to the probe, and the answer is the sum.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ...solver.errors import ReplayError

if TYPE_CHECKING:
    from collections.abc import Sequence

_aten: Any = torch.ops.aten


class Look(NamedTuple):
    """Shape, strides (elements), data type and device of a gradient."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


class Probe(torch.Tensor):
    """Stands where the engine adds up gradients of one tensor, until the step's own arrives.

    Attributes
    ----------
    found
        What was there: the sum of all that came before; None if nothing was, or it is used.
    strides
        Strides of plain PyTorch's sum where something was added to a part of the step's.
    later
        What came from elsewhere in the middle of the step.
    open
        Whether what comes is from before the step.
    arriving
        Whether what comes next is the step's own gradient.
    """

    found: torch.Tensor | None = None
    strides: tuple[int, ...] | None = None
    later: tuple[torch.Tensor, ...] = ()
    open = True
    arriving = False

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def like(look: Look) -> Probe:
        """A probe for a tensor that looks like this."""
        made: Probe = torch.Tensor._make_wrapper_subclass(
            Probe, look.shape, strides=look.stride, dtype=look.dtype, device=look.device
        )
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> torch.Tensor | None:
        if func is _aten.add.Tensor:
            first, second = args
            if isinstance(first, Probe):
                return first._met(second)
            probe: Probe = second
            return probe._met(first)
        if func is _aten.isnan.default:  # asked in anomaly mode
            return torch.zeros((), dtype=torch.bool, device=args[0].device)
        if func is _aten.record_stream.default:
            return None
        raise ReplayError(
            f"{func} meets a gradient of a replayed step that is not there yet: it was read in the "
            "middle of backward"
        )

    def _met(self, other: torch.Tensor) -> torch.Tensor:
        """The engine adds this one and another gradient: what is to stand there from now on."""
        if self.open and not isinstance(other, Probe):
            self.found = other if self.found is None else self.found + other
            return self
        if not self.arriving:
            self.later = (*self.later, other)
            return self
        total = other
        if self.found is not None:
            total, self.found = self.found + other, None
        elif self.strides is not None and total.stride() != self.strides:
            total = torch.empty_strided(
                total.shape, self.strides, dtype=total.dtype, device=total.device
            ).copy_(total)
        for late in self.later:
            total = total + late
        return total


class Seeds:
    """The probes of one backward.

    Parameters
    ----------
    looks
        For each sum what its gradient looks like; None for one that does not arrive.
    """

    def __init__(self, looks: Sequence[Look | None]) -> None:
        self.probes = [None if look is None else Probe.like(look) for look in looks]

    def close(self) -> bool:
        """The step begins: whether something came before it."""
        found = False
        for probe in self.probes:
            if probe is not None:
                probe.open = False
                found = found or probe.found is not None
        return found

    def found(self, place: int) -> bool:
        """Whether something came before that is not part of a sum by now."""
        probe = self.probes[place]
        return probe is not None and probe.found is not None

    def begin(
        self, place: int, first: torch.Tensor, second: torch.Tensor, over: bool, last: bool
    ) -> torch.Tensor:
        """Begin a sum with what came before: add its first part to that, then the second.

        Parameters
        ----------
        place
            Which sum; `found(place)` must hold.
        first, second
            Its first two parts.
        over
            Whether the result may lie where the first part does.
        last
            Whether the sum is not begun again in this backward.
        """
        probe = self.probes[place]
        assert probe is not None
        assert probe.found is not None
        found = probe.found
        if last:
            probe.found = None
        if over and not found.is_sparse and found.stride() == first.stride():
            return first.add_(found).add_(second)
        total = first + found if found.is_sparse else found + first
        del found
        probe.strides = total.stride()
        return total.add_(second)

    def deliver(self, places: Sequence[int]) -> None:
        """What arrives next at these probes are the sums of the step."""
        for place in places:
            probe = self.probes[place]
            if probe is not None:
                probe.arriving = True
