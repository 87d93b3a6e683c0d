"""Everything that may hold a number which a step reads."""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch.nn import functional as F

if TYPE_CHECKING:
    from collections.abc import Callable


class Mode(enum.Enum):
    """A choice between two scales."""

    LOW = 1.0
    HIGH = 2.0


class Settings:
    """Numbers as attributes of a class."""

    w: ClassVar[float] = 1.0
    deep: ClassVar[dict[str, float]] = {"w": 1.0}


class Slotted:
    """A number in a slot."""

    __slots__ = ("w",)

    def __init__(self) -> None:
        self.w = 1.0


class Easy(dict[str, Any]):
    """A dict whose entries are attributes, as configurations often are."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(name) from error


@dataclass
class Config:
    """Numbers in a dataclass, one below another."""

    w: float = 1.0
    unused: int = 0
    parts: list[Any] = field(default_factory=lambda: [1.0, {"w": 1.0}])


# What holds a number; how the step reads it; how it is changed.
HOLDERS: dict[str, tuple[Callable[[], Any], Callable[[Any], float], Callable[[Any], object]]] = {
    "dict": (lambda: {"w": 1.0, "n": 0}, lambda h: h["w"], lambda h: h.update(w=2.0)),
    "int key": (lambda: {0: 1.0, 1: 5}, lambda h: h[0], lambda h: h.update({0: 2.0})),
    "get": (lambda: {"w": 1.0}, lambda h: h.get("w", 3.0), lambda h: h.update(w=2.0)),
    "get none": (dict, lambda h: h.get("w", 1.0), lambda h: h.update(w=2.0)),
    "gone": (lambda: {"w": 2.0}, lambda h: h.get("w", 1.0), lambda h: h.pop("w")),
    "in": (dict, lambda h: 2.0 if "w" in h else 1.0, lambda h: h.update(w=2.0)),
    "sum": (lambda: {"a": 1.0}, lambda h: sum(h.values()), lambda h: h.update(b=2.0)),
    "computed key": (
        lambda: {"w1": 1.0, "w2": 0},
        lambda h: h["w" + str(len("a"))],
        lambda h: h.update(w1=2.0),
    ),
    "list": (lambda: [1.0, 2.0], lambda h: h[0], lambda h: h.__setitem__(0, 2.0)),
    "longer list": (lambda: [1.0], sum, lambda h: h.append(2.0)),
    "mixed list": (lambda: [1.0, {}], lambda h: h[0], lambda h: h.__setitem__(0, 2.0)),
    "long list": (lambda: [1.0] * 3000, sum, lambda h: h.__setitem__(2000, 2.0)),
    "deque": (lambda: deque([1.0]), lambda h: h[-1], lambda h: h.__setitem__(0, 2.0)),
    "dicts in a list": (
        lambda: [{"a": 1.0}, {"b": 1.0}],
        lambda h: sum(sum(inner.values()) for inner in h),
        lambda h: h[1].update(b=2.0),
    ),
    "set": (lambda: {"w"}, lambda h: 2.0 if "v" in h else 1.0, lambda h: h.add("v")),
    "nested": (
        lambda: {"o": SimpleNamespace(p=[{"w": 1.0}, None])},
        lambda h: h["o"].p[0]["w"],
        lambda h: h["o"].p[0].update(w=2.0),
    ),
    "namespace": (
        lambda: SimpleNamespace(w=1.0, n=0),
        lambda h: h.w,
        lambda h: setattr(h, "w", 2.0),
    ),
    "getattr": (
        SimpleNamespace,
        lambda h: getattr(h, "w", 1.0),
        lambda h: setattr(h, "w", 2.0),
    ),
    "vars": (
        lambda: SimpleNamespace(w=1.0),
        lambda h: sum(vars(h).values()),
        lambda h: setattr(h, "w", 2.0),
    ),
    "dataclass": (Config, lambda h: h.w, lambda h: setattr(h, "w", 2.0)),
    "in a dataclass": (
        Config,
        lambda h: h.parts[1]["w"],
        lambda h: h.parts[1].update(w=2.0),
    ),
    "slots": (Slotted, lambda h: h.w, lambda h: setattr(h, "w", 2.0)),
    "easy dict": (lambda: Easy(w=1.0), lambda h: h.w, lambda h: h.update(w=2.0)),
    "enum": (
        lambda: {"mode": Mode.LOW},
        lambda h: h["mode"].value,
        lambda h: h.update(mode=Mode.HIGH),
    ),
    "type": (lambda: {"w": 1}, lambda h: h["w"], lambda h: h.update(w=1.0)),
    "function": (
        lambda: {"act": torch.tanh},
        lambda h: float(h["act"] is torch.tanh),
        lambda h: h.update(act=F.relu),
    ),
}
