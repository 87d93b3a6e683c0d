"""Emits one statement at a time and knows which names are bound after it.

A name `v12` is a value of the program. All values of one storage (its *key*) are names of the same
memory; freeing the storage deletes them all. Backward starts with no names: the first use of one
that forward held adds it to the list that is carried over.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from ..frontends.torch.inplace import placed_variant_of, variant_of
from ..frontends.torch.program import Kind, ValueRef
from ..solver.errors import ReplayError
from .literals import Namespace, write_argument
from .rng import state_functions
from .shortcuts import Shortcuts
from .views import equal_views

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..frontends.torch.program import Call, Program
    from .absent import Missing
    from .arena import Arena
    from .order import Step
    from .sums import Begin

_private: Any = torch._C


class Emitter:
    """Symbolic state of the code emitted so far.

    Attributes
    ----------
    lines
        Statements of the function that is being written.
    carried
        Values that forward hands to backward, in order.
    overwritten
        Tensors whose memory backward gives to the result of an op.
    begun
        Executions in which sums of gradients begin, by place in the schedule.
    """

    def __init__(
        self,
        program: Program,
        namespace: Namespace | None = None,
        *,
        shorten: bool = True,
        arena: Arena | None = None,
    ) -> None:
        self.program = program
        self.arena = arena
        self._same = equal_views(program) if shorten else {}
        self._shortcuts = Shortcuts(program)
        self.namespace = Namespace() if namespace is None else namespace
        self.lines: list[str] = []
        self.carried: list[int] = []
        self.overwritten: set[int] = set()
        self.begun: dict[int, Begin] = {}
        self._instead = ""
        self._written: list[int] = []
        self._bound: set[int] = set()
        self._names: dict[int, list[int]] = {}
        self._live: set[int] = set()
        self._inherited: dict[int, list[int]] = {}
        self._missing: Missing | None = None
        self.inputs = [spec.value for spec in program.inputs if spec.kind != "tangent"]
        self.tangents = [spec.value for spec in program.inputs if spec.kind == "tangent"]
        for value in self.inputs:
            self._bind(value)

    # Names and storages -------------------------------------------------------------------------

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
        self.overwritten.clear()
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

    # Statements ---------------------------------------------------------------------------------

    def line(self, text: str) -> None:
        """Append one statement."""
        self.lines.append(text)

    def step(self, step: Step) -> None:
        """Emit one step of the schedule."""
        if step.op < 0:
            self.forget(step.free)
            self._live.discard(step.free)
            return
        if step.spared:
            return
        op = self.program.ops[step.op]
        if op.kind is not Kind.WRITE_BACK:
            self.count_versions()
        call, reads = op.call, list(op.reads)
        if call is not None and step.overwrites < 0 and not op.random and self.arena is None:
            call = self._shortcuts.shorter(call, self._same, self._bound)
            reads = list(dict.fromkeys(call.refs()))
        if op.random and op.rng_value is not None and not step.again:
            # Its saved state is an input of the graph's op; only reruns look at it.
            reads = [value for value in reads if value != op.rng_value]
        for value in reads:
            self.ensure(value)
        held = frozenset(key for key in map(self.key, op.writes) if key in self._live and key >= 0)
        if self._missing is not None and call is not None and any(map(self.dead, reads)):
            made = [value for value in op.writes if self.key(value) not in held]
            if all(map(self.dead, op.writes)):
                self._bind_nothing(value for value in made if value not in self._bound)
                return
            passing = self._missing.passing(call)
            if passing is not None and made:
                name = self.name(passing)
                alone = {self.key(passing), self.key(made[0])}.isdisjoint(self._missing.taken)
                self.line(f"v{made[0]} = {name if alone else f'{self.clone}({name})'}")
                self._bind(made[0])
                return
        note = f"  # {self.program.graph.ops[step.op].module}{' again' if step.again else ''}"
        note = "" if note.strip() == "#" else note.replace("#  ", "# ")
        if op.kind is Kind.CALL:
            assert call is not None
            if step.place in self.begun:
                self._instead = self._begin_sum(self.begun[step.place], call)
            offset = None if self.arena is None else self.arena.offsets.get(step.place)
            if op.random and step.again:
                self._rerun_random(call, op.rng_value, held, note, offset)
            elif step.overwrites >= 0:
                self._assign_over(call, step.overwrites, held, note)
            elif offset is not None:
                self._assign_placed(call, offset, note)
            else:
                self._assign(call, held, note)
        elif op.kind is Kind.RNG_STATE:
            get_state, _ = state_functions(self._device_of_state(op.writes[0]))
            name = self.namespace.bind(get_state, "get_state")
            self._store(op.writes, held, f"{name}()", unpack=False, note=note)
        elif op.kind is Kind.SNAPSHOT:
            self._store(
                op.writes, held, f"{self.clone}({self.name(op.reads[0])})", unpack=False, note=note
            )
        elif op.kind is Kind.WRITE_BACK:
            assert op.target_input is not None
            target = self.program.inputs[op.target_input].value
            self.ensure(target)
            copy = self.namespace.bind(_private.TensorBase.copy_, "write_back")
            self.line(f"{copy}({self.name(target)}, {self.name(op.reads[0])}){note}")
            self._written.append(target)

    def count_versions(self) -> None:
        """Count what was written back: generated code runs below the layer that would do so."""
        if self._written:
            count = self.namespace.bind(_private._increment_version, "count_versions")
            self.line(f"{count}([{', '.join(map(self.name, self._written))}])")
            self._written.clear()

    @property
    def clone(self) -> str:
        """Name of the clone operator."""
        return self.namespace.bind(_private.TensorBase.clone, "clone")

    def _device_of_state(self, state: int) -> torch.device:
        """Device of the generator whose state a value holds: that of the random op behind it."""
        for op in self.program.ops:
            if op.rng_value == state and op.writes:
                return self.program.value_meta[op.writes[0]].device
        raise ReplayError(f"no random op uses the generator state {self.describe(state)}")

    def _rerun_random(
        self,
        call: Call,
        state: int | None,
        held: frozenset[int],
        note: str,
        offset: int | None,
    ) -> None:
        assert state is not None
        get_state, set_state = state_functions(self._device_of_state(state))
        get_name = self.namespace.bind(get_state, "get_state")
        set_name = self.namespace.bind(set_state, "set_state")
        self.ensure(state)
        self.line(f"s = {get_name}(); {set_name}({self.name(state)})")
        if offset is None:
            self._assign(call, held, note)
        else:
            self._assign_placed(call, offset, note)
        self.line(f"{set_name}(s); del s")

    def _begin_sum(self, begin: Begin, call: Call) -> str:
        """What is done instead of the first addition of a sum if something came before it."""
        words = f"{', '.join(map(self.name, call.refs()))}, {begin.over}, {begin.last}"
        found = f"not seeds.found({begin.number})"
        return f" if seeds is None or {found} else seeds.begin({begin.number}, {words})"

    def _assign(self, call: Call, held: frozenset[int], note: str) -> None:
        words = [self._argument(argument) for argument in call.args]
        words += [f"{key}={self._argument(argument)}" for key, argument in call.kwargs.items()]
        text = f"{self._shortcuts.function(self.namespace, call)}({', '.join(words)})"
        self._store(call.outputs, held, text, unpack=call.unpack, note=note)

    def _assign_over(self, call: Call, tensor: int, held: frozenset[int], note: str) -> None:
        """Put a result where `tensor` is, whose names are deleted right after."""
        value = next(v for v in call.refs() if self.program.value_tensor[v] == tensor)
        variant = variant_of(call, value, self.program.value_meta[value].device)
        assert variant is not None
        again = {variant.out: ValueRef(value)} if variant.out else {}
        self._assign(
            replace(call, target=variant.target, kwargs={**call.kwargs, **again}), held, note
        )
        self.overwritten.add(tensor)

    def _assign_placed(self, call: Call, offset: int, note: str) -> None:
        """Put a result into the arena."""
        (made,) = call.outputs
        assert made is not None
        meta = self.program.value_meta[made]
        variant = placed_variant_of(call, meta.device)
        assert variant is not None
        views = self.namespace.bind(_private.TensorBase.as_strided, "as_strided")
        base = f"arena_{str(meta.dtype).removeprefix('torch.')}"
        where = f"{views}({base}, {meta.shape}, {meta.stride}, {offset // meta.dtype.itemsize})"
        value = ValueRef(made)
        name = self._shortcuts.function(
            self.namespace,
            replace(call, target=variant.target, kwargs={**call.kwargs, variant.out: value})
            if variant.out
            else replace(call, target=variant.target, args=(value, call.args[0]), kwargs={}),
        )
        if variant.out:
            words = [self._argument(argument) for argument in call.args]
            words += [f"{key}={self._argument(item)}" for key, item in call.kwargs.items()]
            words.append(f"{variant.out}={where}")
        else:
            words = [where, self._argument(call.args[0])]
        self._store((made,), (), f"{name}({', '.join(words)})", unpack=False, note=note)

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
        text, self._instead = text + self._instead, ""
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
