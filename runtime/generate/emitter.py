"""Emits the statements of one step of a schedule at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from ...frontends.torch.generators import state_functions
from ...frontends.torch.inplace import placed_variant_of, variant_of
from ...frontends.torch.program import Kind, ValueRef
from ...solver.errors import ReplayError
from .names import Names

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ...frontends.torch.program import Call, Program
    from ..step.arena import Arena
    from .absent import Missing
    from .literals import Namespace
    from .order import Step
    from .sums import Begin

_private: Any = torch._C


class Emitter(Names):
    """Writes what ops do.

    Attributes
    ----------
    overwritten
        Tensors whose memory backward gives to the result of an op.
    begun
        Executions in which sums of gradients begin, by place in the schedule.
    instead
        Op -> what it does instead.
    """

    def __init__(
        self,
        program: Program,
        namespace: Namespace | None = None,
        *,
        shorten: bool = True,
        arena: Arena | None = None,
    ) -> None:
        super().__init__(program, namespace, shorten=shorten)
        self.arena = arena
        self.overwritten: set[int] = set()
        self.begun: dict[int, Begin] = {}
        self.instead: dict[int, Call] = {}
        self._instead = ""
        self._written: list[int] = []

    def start_backward(self, missing: Missing | None = None) -> None:
        """Forward is written: begin with no names but the tangents, and without `missing` ones."""
        super().start_backward(missing)
        self.overwritten.clear()

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
        call, reads = self.instead.get(step.op, op.call), list(op.reads)
        if step.again and op.again is not None:
            call, reads = op.again, list(dict.fromkeys(op.again.refs()))
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
            if op.again is None:  # nobody counts what a batch norm does to its statistics
                self._written += [self.program.inputs[i].value for i in op.updates]
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
        """Count what was changed: generated code runs below the layer that would do so."""
        if self._written:
            count = self.namespace.bind(_private._increment_version, "count_versions")
            self.line(f"{count}([{', '.join(map(self.name, self._written))}])")
            self._written.clear()

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

    def _store(
        self,
        outputs: Sequence[int | None],
        held: Iterable[int],
        text: str,
        *,
        unpack: bool,
        note: str,
    ) -> None:
        text, self._instead = text + self._instead, ""
        super()._store(outputs, held, text, unpack=unpack, note=note)

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
