"""Symbolic state of generated code: which names are bound, and what they stand for.

A name `v12` is a value of the program. All values of one storage (its *key*) are names of the same
memory; freeing the storage deletes them all. Backward starts with no names: the first use of one
that forward held adds it to the list that is carried over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ...frontends.torch.program import ValueRef
from ...solver.errors import ReplayError
from .literals import Namespace, write_argument
from .shortcuts import Shortcuts
from .views import equal_views

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ...frontends.torch.program import Call, Program
    from .absent import Missing

_private: Any = torch._C


class Names:
    """Binds names, makes views where they are first needed, and deletes names.

    Attributes
    ----------
    lines
        Statements of the function that is being written.
    carried
        Values that forward hands to backward, in order.
    inputs, tangents
        Values that forward and backward are given.
    """

    def __init__(
        self, program: Program, namespace: Namespace | None = None, *, shorten: bool = True
    ) -> None:
        self.program = program
        self.namespace = Namespace() if namespace is None else namespace
        self.lines: list[str] = []
        self.carried: list[int] = []
        self._same = equal_views(program) if shorten else {}
        self._shortcuts = Shortcuts(program)
        self._bound: set[int] = set()
        self._names: dict[int, list[int]] = {}
        self._live: set[int] = set()
        self._inherited: dict[int, list[int]] = {}
        self._missing: Missing | None = None
        self.inputs = [spec.value for spec in program.inputs if spec.kind != "tangent"]
        self.tangents = [spec.value for spec in program.inputs if spec.kind == "tangent"]
        for value in self.inputs:
            self._bind(value)

    def key(self, value: int) -> int:
        """Storage of a value; a value without storage has a negative key of its own."""
        tensor = self.program.value_tensor[value]
        return tensor if tensor >= 0 else -value - 1

    def name(self, value: int) -> str:
        """Name of a value in the code; views that are equal in all but identity share one."""
        return f"v{self._same.get(value, value)}"

    def root(self, value: int) -> int:
        """The value that a view is, in the end, a view of."""
        while value in self.program.views:
            value = next(self.program.views[value].refs())
        return value

    def holds(self, value: int) -> bool:
        """Whether the storage of `value` is in memory here."""
        return self.key(value) in self._live or self.key(self.root(value)) in self._live

    def _bind(self, value: int) -> None:
        self._bound.add(value)
        self._names.setdefault(self.key(value), []).append(value)
        self._live.add(self.key(value))

    def ensure(self, value: int) -> None:
        """Make the name of `value` usable here: carry it over, or emit the views that make it.

        Raises
        ------
        ReplayError
            If its storage is not in memory.
        """
        pending = [value]
        while pending:
            current = self._same.get(pending[-1], pending[-1])
            if current in self._bound:
                pending.pop()
                continue
            if current in self._inherited.get(self.key(current), ()):
                self._carry(current)
                continue
            if self.dead(current):
                self._bind_nothing([current])
                continue
            call = self.program.views.get(current)
            if call is None:
                raise ReplayError(f"the plan reads {self.describe(current)} before it is computed")
            sources = [self._same.get(source, source) for source in call.refs()]
            missing = [source for source in sources if source not in self._bound]
            if missing:
                pending.extend(missing)
            else:
                self._assign(call, frozenset(), "")

    def _carry(self, value: int) -> None:
        self.carried.append(value)
        self._bind(value)

    def forget(self, key: int) -> None:
        """Delete every name of a storage."""
        names = self._names.pop(key, [])
        inherited = self._inherited.pop(key, [])
        if not names and inherited:
            # Held since forward and never used here: it still stays in memory until this point.
            self._carry(inherited[0])
            names = self._names.pop(key)
        if names:
            self.line(f"del {', '.join(f'v{v}' for v in names)}")
            self._bound.difference_update(names)

    def hold_to_the_end(self) -> None:
        """Carry over what forward made and nobody frees: it stays in memory until backward ends."""
        tensors = self.program.graph.tensors
        given = {self.key(value) for value in self.inputs}
        for key, names in list(self._inherited.items()):
            if key >= 0 and key not in given and not tensors[key].output and key not in self._names:
                self._carry(names[0])

    def start_backward(self, missing: Missing | None = None) -> None:
        """Forward is written: begin with no names but the tangents, and without `missing` ones."""
        self._missing = missing
        self._inherited = {key: list(names) for key, names in self._names.items()}
        self._bound, self._names, self.lines = set(), {}, []
        for value in self.tangents:
            self._bind(value)

    def dead(self, value: int) -> bool:
        """Whether a value hangs on tangents that do not arrive, and on no other."""
        return self._missing is not None and self._missing.dead(value)

    def _bind_nothing(self, values: Iterable[int]) -> None:
        """None stands for values that are not there."""
        for value in values:
            self.line(f"v{value} = None")
            self._bind(value)

    def describe(self, value: int) -> str:
        """A value for error messages."""
        tensor = self.program.value_tensor[value]
        return self.program.graph.tensors[tensor].name if tensor >= 0 else f"value {value}"

    # Statements -----------------------------------------------------------------------------------

    def line(self, text: str) -> None:
        """Append one statement."""
        self.lines.append(text)

    @property
    def clone(self) -> str:
        """Name of the clone operator."""
        return self.namespace.bind(_private.TensorBase.clone, "clone")

    def _assign(self, call: Call, held: frozenset[int], note: str) -> None:
        words = [self._argument(argument) for argument in call.args]
        words += [f"{key}={self._argument(argument)}" for key, argument in call.kwargs.items()]
        text = f"{self._shortcuts.function(self.namespace, call)}({', '.join(words)})"
        self._store(call.outputs, held, text, unpack=call.unpack, note=note)

    def _argument(self, argument: Any) -> str:
        return write_argument(argument, self.namespace, self._value_name)

    def _value_name(self, argument: Any) -> str | None:
        if not isinstance(argument, ValueRef):
            return None
        if self._missing is not None and self._missing.dead(argument.index):
            zeros = self._missing.zeros(argument.index)
            return f"{self.namespace.bind(zeros, 'zeros')}()"
        return self.name(argument.index)

    def _store(
        self,
        outputs: Sequence[int | None],
        held: Iterable[int],
        text: str,
        *,
        unpack: bool,
        note: str,
    ) -> None:
        """Assign a result; what is unused, or in memory already, is dropped at once."""
        keep = [value is not None and self.key(value) not in held for value in outputs]
        if not any(keep):
            self.line(f"{text}{note}")
            return
        names = [f"v{v}" if kept else "_" for v, kept in zip(outputs, keep, strict=True)]
        comma = "," if unpack and len(names) == 1 else ""
        self.line(f"{', '.join(names)}{comma} = {text}{note}")
        if "_" in names:
            self.line("del _")
        for value, kept in zip(outputs, keep, strict=True):
            if kept and value is not None and value not in self._bound:
                self._bind(value)
