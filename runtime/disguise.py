"""A replaying module is an instance of the wrapped module's class, as far as others can see.

Libraries ask `isinstance(model, PreTrainedModel)`, read `model.__class__` and the signature of
`forward`. Proxies answer such questions through `__class__`; `type()` tells the truth.
"""

from __future__ import annotations

import inspect
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..solver.errors import ReplayError

if TYPE_CHECKING:
    from collections.abc import Callable

_CONTAINER_METHODS = ("__len__", "__getitem__", "__iter__", "__contains__")
# Of nn.Module's public methods, those that concern the module that is called, not the wrapped one.
_OF_THE_OUTSIDE = frozenset(
    {
        "compile", "extra_repr", "forward", "modules", "named_modules", "register_backward_hook",
        "register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook",
        "register_full_backward_pre_hook",
    }
)  # fmt: skip


_NOT_COMPILED = (
    "a step that lowtide replays is code of its own; to compile under a budget, give "
    "lowtide.backend(...) to torch.compile of the original model"
)
_set_class: Any = vars(object)["__class__"].__set__  # the truth, past the property below


class Disguise(nn.Module):
    """Shows the class of the module `_wrapped` as its own."""

    def _shown_class(self) -> type:
        state = object.__getattribute__(self, "__dict__")
        wrapped = state.get("_wrapped")
        return type(self) if wrapped is None else state.get("_shown", wrapped.__class__)

    def _take_class(self, new: type) -> None:
        """Take what is assigned to `__class__`.

        Base classes that a wrapper adds to the shown class, as FSDP does, are for this module; any
        other class is for the wrapped one, and the guards will notice.
        """
        shown, real = self.__class__, type(self)
        if shown not in new.__bases__ or len(new.__bases__) < 2:
            self._wrapped.__class__ = new
            return
        made = _adopted.setdefault(real, weakref.WeakKeyDictionary())
        if new not in made:
            bases = tuple(real if base is shown else base for base in new.__bases__)
            own = {k: v for k, v in vars(new).items() if k not in ("__dict__", "__weakref__")}
            made[new] = type(new.__name__, bases, own)
        _set_class(self, made[new])
        self.__dict__["_shown"] = new

    __class__ = property(_shown_class, _take_class)

    def _replicate_for_data_parallel(self) -> Any:
        raise ReplayError(
            "nn.DataParallel copies modules to other devices, where a plan is not valid: use one "
            "process a device (DistributedDataParallel)"
        )


_adopted: weakref.WeakKeyDictionary[type, weakref.WeakKeyDictionary[type, type]] = (
    weakref.WeakKeyDictionary()
)
_classes: weakref.WeakKeyDictionary[type, weakref.WeakKeyDictionary[type, type]] = (
    weakref.WeakKeyDictionary()
)


def class_for(base: type[nn.Module], wrapped: type[nn.Module]) -> type[Any]:
    """`base` with what Python and libraries look up by class of `wrapped`.

    These are the container methods, the signature of `forward`, and the methods of `nn.Module` that
    `wrapped` overrides.
    """
    made = _classes.setdefault(base, weakref.WeakKeyDictionary())
    if wrapped not in made:
        names = [name for name in _CONTAINER_METHODS if hasattr(wrapped, name)]
        names += _overridden(wrapped, base)
        members: dict[str, Any] = {name: _forwarder(name) for name in names}
        members["forward"] = _forward_of(base, wrapped)
        members["__doc__"], members["__module__"] = base.__doc__, base.__module__
        made[wrapped] = type(base.__name__, (base,), members)
    return made[wrapped]


def _overridden(wrapped: type[nn.Module], base: type[nn.Module]) -> list[str]:
    return [
        name
        for name, method in vars(nn.Module).items()
        if not name.startswith("_")
        and callable(method)
        and name not in _OF_THE_OUTSIDE
        and getattr(base, name) is method
        and getattr(wrapped, name) is not method
    ]


def _forwarder(name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = getattr(self._wrapped, name)(*args, **kwargs)
        return self if result is self._wrapped else result

    method.__name__ = name
    return method


def _forward_of(base: type[nn.Module], wrapped: type[nn.Module]) -> Callable[..., Any]:
    """`base.forward` with the signature that `wrapped.forward` shows.

    Under `torch.compile` it is a break in the graph: what it runs is code that was generated.
    """
    replayed = base.forward
    uncompiled = torch.compiler.disable(replayed, reason=_NOT_COMPILED)  # type: ignore[no-untyped-call]

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():
            return uncompiled(self, *args, **kwargs)
        return replayed(self, *args, **kwargs)

    forward.__doc__ = wrapped.forward.__doc__ or replayed.__doc__
    try:
        shown: Any = inspect.signature(wrapped.forward)
        forward.__signature__ = shown  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        pass
    return forward
