"""Lines of a guard that read the places outside of the modules, and compare what is there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...frontends.torch.outside.alike import same_literal
from ...frontends.torch.outside.arrays import Numbers
from ...frontends.torch.outside.places import Absent, Content, Length

if TYPE_CHECKING:
    from ...frontends.torch.outside.places import Place
    from ..generate.literals import Namespace

_LARGE = 16  # entries of a dict from which its length is looked at first


class PlaceLines:
    """Writes the lines of a guard that read and compare places, the way to them shared."""

    def __init__(
        self, places: list[Place], tensors: dict[int, str], bound: set[int], names: Namespace
    ) -> None:
        self.tensors, self.bound, self.names = tensors, bound, names
        names.globals["same_literal"] = same_literal
        self.uses: dict[Any, int] = {}
        for place in places:
            for end in range(1, len(place.steps)):
                key = self._key(place, end)
                self.uses[key] = self.uses.get(key, 0) + 1
        self.held: dict[Any, str] = {}

    @staticmethod
    def _key(place: Place, end: int) -> tuple[Any, ...]:
        return place.path, id(place.root), place.steps[:end]

    def lines(self, place: Place, root: str) -> list[str]:
        """Lines for one place; `root` is the text of what it is below."""
        made: list[str] = []
        text = root
        for end, step in enumerate(place.steps, 1):
            text += step
            key = self._key(place, end)
            if key in self.held:
                text = self.held[key]
            elif self.uses.get(key, 0) > 1:
                name = self.held[key] = f"o{len(self.held)}"
                made.append(f"{name} = {text}")
                text = name
        return [*made, *self._last(place, text)]

    def _last(self, place: Place, text: str) -> list[str]:
        if place.value >= 0:
            target = self.tensors[place.value]
            if place.value in self.bound:
                return [f"if {text} is not {target}: return None"]
            self.bound.add(place.value)
            return [f"{target} = {text}"]
        was = place.plain
        if isinstance(was, Length):
            return [f"if len({text}) != {was.count}: return None"]
        if isinstance(was, Absent):
            keys = self.names.bind(was.keys, "absent")
            # A key that is new in a large dict shows in its length.
            first = f"len({text}) != {was.count} and " if was.count > _LARGE else ""
            return [f"if {first}not {keys}.isdisjoint({text}): return None"]
        if isinstance(was, (Content, Numbers)):
            same = self.names.bind(was, "content")
            return [f"if not {same}.same({text}): return None"]
        if was is None or was is True or was is False:
            return [f"if {text} is not {was}: return None"]
        known = self.names.bind(was, "was")  # mostly it is the very object that it was
        return [f"if (v := {text}) is not {known} and not same_literal(v, {known}): return None"]
