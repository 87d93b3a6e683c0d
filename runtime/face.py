"""The outside of a replaying module: what it does not define itself is the wrapped module's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from ..solver.errors import ReplayError
from .disguise import Disguise

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import nn

# Methods by which a library trains a module without calling it.
_STEPS = ("training_step",)


class Face(Disguise):
    """Passes for the module `_wrapped`, whose tables of parameters and children it shares."""

    _wrapped: Any

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            wrapped = self.__dict__.get("_wrapped")
            if wrapped is None:
                raise
        if name in _STEPS and hasattr(wrapped, name):
            raise ReplayError(
                f"{name} is a method of the plain {type(wrapped).__name__}, which it would train "
                "without the plan: fit the network that it calls (self.model = lowtide.fit(...)), "
                "not the LightningModule"
            )
        return getattr(wrapped, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set on the wrapped module all but what this one has of its own, and private news."""
        wrapped = self._holder(name)
        if wrapped is None:
            super().__setattr__(name, value)
        else:
            setattr(wrapped, name, value)

    def __delattr__(self, name: str) -> None:
        wrapped = self._holder(name)
        if wrapped is None:
            super().__delattr__(name)
        else:
            delattr(wrapped, name)

    def _holder(self, name: str) -> nn.Module | None:
        """The module that an attribute belongs to, None for this one.

        New attributes are the wrapped module's, except private ones, in which libraries note what
        they did to the module they were given.
        """
        wrapped: nn.Module | None = self.__dict__.get("_wrapped")
        if wrapped is None or name in self.__dict__ or hasattr(type(self), name):
            return None
        return None if name.startswith("_") and not hasattr(wrapped, name) else wrapped

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *dir(self._wrapped)})

    @property
    def training(self) -> bool:
        """The flag of the wrapped module."""
        wrapped = self.__dict__.get("_wrapped")
        return True if wrapped is None else bool(wrapped.training)

    @training.setter
    def training(self, mode: bool) -> None:
        wrapped = self.__dict__.get("_wrapped")
        if wrapped is not None:
            wrapped.training = mode

    def train(self, mode: bool = True) -> Self:
        """Set the mode of the wrapped module, by its own method."""
        self._wrapped.train(mode)
        return self

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        self._wrapped._apply(fn, recurse)
        return self

    def apply(self, fn: Callable[[nn.Module], None]) -> Self:
        """Apply `fn` to the wrapped module and its children."""
        self._wrapped.apply(fn)
        return self

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The state dict of the wrapped module."""
        return self._wrapped.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Load into the wrapped module."""
        return self._wrapped.load_state_dict(state_dict, *args, **kwargs)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._wrapped._load_from_state_dict(*args, **kwargs)
