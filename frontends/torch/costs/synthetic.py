"""Arguments to time an op with: real tensors with the layout of the captured values.

Floating-point values are uniform in [0, 1). Integer and boolean values must be valid (indices into
a table, masks), so they are evaluated from the example batch and the model's buffers as far as
they depend on integers; an integer result of a floating-point op comes from running that op on
synthetic arguments. What cannot be evaluated is zero.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from ..program import Kind, ValueRef
from .signature import alignment, copies_storage

if TYPE_CHECKING:
    from ..captured import Captured
    from ..interface import InputSpec
    from ..program import Call, ProgramOp, ValueMeta

_log = logging.getLogger(__name__)

_BLOCK_ELEMENTS = 1 << 20
_SEED = 0


class Synthesizer:
    """Makes the arguments of one call at a time; never hands out the user's own tensors.

    Parameters
    ----------
    captured
        The step whose values are made.
    """

    def __init__(self, captured: Captured) -> None:
        self._captured = captured
        program = captured.program
        self._metas = program.value_meta
        self._inputs = {spec.value: spec for spec in program.inputs}
        self._makers: dict[int, ProgramOp] = {v: op for op in program.ops for v in op.writes}

    def arguments(self, call: Call) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments of `call`; an argument that is named twice is one tensor."""
        return self._arguments(call, {}, {})

    def _arguments(
        self, call: Call, made: dict[int, torch.Tensor], integers: dict[int, torch.Tensor]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        whole = copies_storage(call)
        for value in call.refs():
            if value not in made:
                made[value] = self._value(value, integers, whole)
        return tuple(_fill(a, made) for a in call.args), {
            key: _fill(a, made) for key, a in call.kwargs.items()
        }

    def _value(self, value: int, integers: dict[int, torch.Tensor], whole: bool) -> torch.Tensor:
        meta = self._metas[value] if whole else replace(self._metas[value], storage=0)
        if meta.dtype.is_floating_point or meta.dtype.is_complex:
            return random_like(meta)
        try:
            found = self._integers(value, integers)
        except Exception as error:  # an op that cannot run alone only costs realistic values
            _log.debug("integer value %d not evaluated: %s", value, error)
            found = None
        if found is None or found.shape != meta.shape or found.dtype != meta.dtype:
            return zeros_like(meta)
        # Its own memory: an op that writes to its argument must not change what others read.
        return zeros_like(meta).copy_(found) if _distinct(meta) else found

    def _integers(self, value: int, known: dict[int, torch.Tensor]) -> torch.Tensor | None:
        """An integer value as the step would compute it; None if it cannot be known."""
        if value in known:
            return known[value]
        program = self._captured.program
        spec, maker = self._inputs.get(value), self._makers.get(value)
        found: torch.Tensor | None = None
        if spec is not None:
            found = self._input(spec)
        elif value in program.views:
            found = self._run(program.views[value], value, known)
        elif maker is not None and maker.kind is Kind.SNAPSHOT:
            found = self._integers(maker.reads[0], known)
        elif maker is not None and maker.call is not None:
            found = self._run(maker.call, value, known)
        if found is not None:
            known[value] = found
        return found

    def _run(self, call: Call, value: int, known: dict[int, torch.Tensor]) -> torch.Tensor | None:
        made: dict[int, torch.Tensor] = {}
        for ref in call.refs():
            meta = self._metas[ref]
            if not (meta.dtype.is_floating_point or meta.dtype.is_complex):
                found = self._integers(ref, known)
                made[ref] = zeros_like(meta) if found is None else found
        args, kwargs = self._arguments(call, made, known)
        result = call.target(*args, **kwargs)
        elements = result if call.unpack else (result,)
        for index, element in zip(call.outputs, elements, strict=False):
            meta_known = index is not None and isinstance(element, torch.Tensor)
            if meta_known and not element.is_floating_point() and not element.is_complex():
                known[index] = element  # type: ignore[index]
        return known.get(value)

    def _input(self, spec: InputSpec) -> torch.Tensor | None:
        device = self._metas[spec.value].device
        tensor: Any = None
        if spec.kind == "input":
            tensor = self._captured.example[spec.position]
        elif spec.kind == "buffer" and not spec.fqn.startswith("loss_fn."):
            tensor = self._captured.model.get_buffer(spec.fqn)
        elif spec.kind == "constant":
            tensor = spec.tensor
        if not isinstance(tensor, torch.Tensor) or not is_real(tensor):
            return None
        return tensor.detach().to(device, copy=True)


def is_real(tensor: torch.Tensor) -> bool:
    """True for a tensor with data: neither fake nor on the meta device."""
    return tensor.device.type != "meta" and not isinstance(tensor, FakeTensor)


def zeros_like(meta: ValueMeta) -> torch.Tensor:
    """Zeros with the layout of a value and the same offset in a cache line."""
    return _with_layout(meta, torch.zeros(_count(meta), dtype=meta.dtype, device=meta.device))


def random_like(meta: ValueMeta) -> torch.Tensor:
    """The same, uniform in [0, 1); draws from no global generator."""
    count = _count(meta)
    flat = torch.empty(count, dtype=meta.dtype, device=meta.device)
    generator = torch.Generator(device=meta.device).manual_seed(_SEED)
    # Random numbers are slow to draw: one block, repeated. Narrow types are drawn wide.
    drawn = meta.dtype if meta.dtype.itemsize > 1 else torch.float32
    size = min(count, _BLOCK_ELEMENTS)
    block = torch.rand(size, dtype=drawn, device=meta.device, generator=generator).to(meta.dtype)
    for start in range(0, count, _BLOCK_ELEMENTS):
        part = flat[start : start + _BLOCK_ELEMENTS]
        part.copy_(block[: part.numel()])
    return _with_layout(meta, flat)


def _count(meta: ValueMeta) -> int:
    """Elements of the smallest storage that holds a value at its offset, or of its own storage."""
    if 0 in meta.shape:
        return max(alignment(meta), meta.storage)
    last = sum((n - 1) * step for n, step in zip(meta.shape, meta.stride, strict=True))
    return max(alignment(meta) + 1 + last, meta.storage)


def _with_layout(meta: ValueMeta, flat: torch.Tensor) -> torch.Tensor:
    return flat.as_strided(meta.shape, meta.stride, alignment(meta))


def _distinct(meta: ValueMeta) -> bool:
    """True if no two elements share memory by broadcasting, so that the value can be filled."""
    return all(step or n <= 1 for n, step in zip(meta.shape, meta.stride, strict=True))


def _fill(argument: Any, made: dict[int, torch.Tensor]) -> Any:
    """An argument with tensors in the place of values."""
    if isinstance(argument, ValueRef):
        return made[argument.index]
    if isinstance(argument, (tuple, list)):
        return type(argument)(_fill(item, made) for item in argument)
    if isinstance(argument, dict):
        return {key: _fill(value, made) for key, value in argument.items()}
    if isinstance(argument, slice):
        return slice(*(_fill(a, made) for a in (argument.start, argument.stop, argument.step)))
    return argument
