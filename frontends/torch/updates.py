"""Buffers that the ops of a step update in place, as they do in plain PyTorch.

A trace gives each new contents of a buffer a tensor of its own, which is written back at the end of
the forward. Where the op that makes it is the last one to read the old contents, and nothing else
reads the new ones, the op can write into the buffer itself, by a variant that computes the same
bits: counters, moving averages, the running statistics of a batch norm. It does so when it first
runs, whatever the schedule. An op that does nothing else never runs again; a batch norm that runs
again leaves the statistics alone, which in training mode its results do not depend on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from .assemble import allocated
from .inplace import Variant, fills_storage, looks_like, variant_of
from .mutation import NEW_STATISTICS, harmless, remap
from .program import Call, ValueRef
from .rng import arguments

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .assemble import Wiring
    from .mutation import Separated
    from .sources import Source
    from .values import Line, Values

_aten: Any = torch.ops.aten
# Batch norms that return new running statistics -> those that update the ones that they are given,
# and return nothing but the rest.
_NORMS: dict[Any, Any] = {
    _aten._native_batch_norm_legit_functional.default: _aten._native_batch_norm_legit.default,
    _aten._batch_norm_with_update_functional.default: _aten._batch_norm_with_update.default,
}
_WITHOUT: Any = _aten._native_batch_norm_legit.no_stats


@dataclass(frozen=True, slots=True)
class Update:
    """What a line does to buffers when it first runs.

    Attributes
    ----------
    targets
        The buffers (values) that it changes.
    again
        The call that makes the same results and changes nothing; None if there are no results.
    rerun_bytes
        Bytes that `again` takes beyond what the first call takes; -1 if it takes the same.
    """

    targets: tuple[int, ...]
    again: Call | None = None
    rerun_bytes: int = -1


def update_in_place(
    separated: Separated,
    values: Values,
    wiring: Wiring,
    sources: Sequence[Source],
    device: torch.device,
) -> dict[str, Update]:
    """Let lines update buffers in place where nobody can tell the difference.

    Parameters
    ----------
    separated
        The lines; those that update a buffer get another call.
    wiring
        Of the joint graph; buffers that are updated in place leave its `mutations`.
    sources
        What the step reads.
    device
        Where the step runs.

    Returns
    -------
    What these lines do, by their names.
    """
    finder = _Finder(separated, values, wiring, sources)
    found: dict[str, Update] = {}
    for place, line in enumerate(separated.lines):
        targets = finder.statistics(place)
        if targets:
            separated.lines[place], found[line.name] = _norm(line, targets, values, device)
            finder.done(targets)
    for source in list(finder.wanted):
        steps = finder.chain(source)
        for place, value, variant in steps:
            line = separated.lines[place]
            separated.lines[place] = replace(line, call=_over(line.call, value, source, variant))
            found[line.name] = Update((source,))
        if steps:
            finder.done([source])
    return found


class _Finder:
    """Knows who reads what.

    Attributes
    ----------
    wanted
        Buffer -> its new contents (values), for buffers that could be updated in place.
    """

    def __init__(
        self, separated: Separated, values: Values, wiring: Wiring, sources: Sequence[Source]
    ) -> None:
        self._lines, self._values, self._wiring = separated.lines, values, wiring
        of = values.storage
        kept = {*wiring.outputs.values(), *wiring.gradients.values()}
        self._kept = {of[value] for value in kept}
        self._read = kept | {value for line in self._lines for value in line.call.refs()}
        # Storage -> places of the lines that read it, or a view of it; the end reads as well.
        self._readers: dict[int, list[int]] = {}
        for place, line in enumerate(self._lines):
            copied = [value for _, value in separated.snapshots.get(line.name, [])]
            for storage in dict.fromkeys(of[value] for value in (*copied, *line.call.refs())):
                self._readers.setdefault(storage, []).append(place)
        for _, value in separated.snapshots.get("", []):
            self._readers.setdefault(of[value], []).append(len(self._lines))
        new = [of[value] for value in wiring.mutations.values()]
        self.wanted = {
            wiring.sources[index]: value
            for index, value in wiring.mutations.items()
            if value != wiring.sources[index]
            and sources[index].kind == "buffer"
            and new.count(of[value]) == 1
            and self._whole(wiring.sources[index])
        }

    def done(self, buffers: Sequence[int]) -> None:
        """Note that these are updated."""
        for source in buffers:
            del self.wanted[source]
        mutations, sources = self._wiring.mutations, self._wiring.sources
        for index in [index for index in mutations if sources[index] in buffers]:
            del mutations[index]

    def statistics(self, place: int) -> tuple[int, ...]:
        """Running statistics that a batch norm can update itself; empty if there are none."""
        line = self._lines[place]
        if line.backward or line.call.target not in _NORMS:
            return ()
        given = arguments(line.call)
        old = [given["running_mean"], given["running_var"]]
        targets = tuple(a.index for a in old if isinstance(a, ValueRef))
        target: Any = line.call.target
        new = [line.call.outputs[i] for i in NEW_STATISTICS[target._schema.name]]
        if [self.wanted.get(value, -1) for value in targets] != new or targets[0] == targets[1]:
            return ()
        last = all(self._last_reader(value) == place for value in targets)
        return targets if last and harmless(line, self._read) == set(targets) else ()

    def chain(self, source: int) -> list[tuple[int, int, Variant]]:
        """The calls that lead from the old contents of a buffer to the new ones.

        Returns
        -------
        For each: place of the line, the value that it overwrites, and the variant that does so.
        Empty if that would change what somebody else reads.
        """
        values, of = self._values, self._values.storage
        meta = values.meta[source]
        steps: list[tuple[int, int, Variant]] = []
        value = source
        while value != self.wanted[source]:
            place = self._last_reader(value)
            if place < 0 or (value != source and len(self._readers[of[value]]) > 1):
                return []
            line = self._lines[place]
            call = line.call
            if line.view or line.backward or call.unpack or len(line.writes) != 1:
                return []
            (made,) = line.writes
            same = all(ref == value for ref in call.refs() if of[ref] == of[value])
            if not same or of[made] in self._kept or not looks_like(values.meta[made], meta):
                return []
            variant = variant_of(call, value, meta.device)
            if variant is None:
                return []
            steps.append((place, value, variant))
            value = made
        return [] if of[value] in self._readers or of[value] in self._kept else steps

    def _last_reader(self, value: int) -> int:
        """Place of the line that reads a value's storage last; -1 if there is none."""
        storage = self._values.storage[value]
        place = self._readers.get(storage, [-1])[-1]
        return -1 if storage in self._kept or place == len(self._lines) else place

    def _whole(self, source: int) -> bool:
        """Whether a buffer is a plain piece of memory, each element once."""
        meta, storage = self._values.meta[source], self._values.storage[source]
        return fills_storage(meta, self._values.nbytes[storage]) and not meta.dtype.is_complex


def _over(call: Call, value: int, source: int, variant: Variant) -> Call:
    """The call with its result in the memory of `source`, of which `value` is the contents."""
    call = remap(call, {value: source})
    kwargs = {**call.kwargs, variant.out: ValueRef(source)} if variant.out else call.kwargs
    return Call(variant.target, call.args, kwargs, (), unpack=False)


def _norm(
    line: Line, targets: tuple[int, ...], values: Values, device: torch.device
) -> tuple[Line, Update]:
    """A batch norm that updates its statistics, and what it runs again."""
    call, given = line.call, arguments(line.call)
    target: Any = call.target
    places = NEW_STATISTICS[target._schema.name]
    results = call.outputs[: places[0]]
    first = replace(call, target=_NORMS[target], outputs=results)
    metas = [values.meta[given[name].index] for name in ("input", "running_mean")]
    # Without a scale the statistics' type decides in which the kernel on the CPU computes.
    scaled = given["weight"] is not None or given["bias"] is not None
    alike = scaled or metas[0].dtype == metas[1].dtype
    if first.target is _aten._native_batch_norm_legit.default and alike:
        names = ("input", "weight", "bias", "training", "momentum", "eps")
        args = tuple(given[name] for name in names)
        again, more = Call(_WITHOUT, args, {}, results, unpack=True), -1
    else:
        # It computes new statistics, from whatever the buffers hold then, and they are dropped.
        again = replace(call, outputs=(*results, *(None for _ in places)))
        more = sum(
            allocated(values.nbytes[values.storage[v]], values.meta[v].device, device)
            for v in targets
        )
    return replace(line, call=first), Update(targets, again, more)
