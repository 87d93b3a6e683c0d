"""Times without running anything: max(arithmetic / peak rate, traffic / bandwidth) + overhead.

Arithmetic of matrix products, convolutions and attention is counted by `torch.utils.flop_counter`
(and here, where it counts too much or not at all); everything else moves its arguments and results
through memory once. On a CPU, functions such as exp cost more than their traffic: `ELEMENT_COST`.
Workspaces are not modelled: they are measured or zero.

Against medians measured on one core of a busy server (`experiments/profile_quality`): sums over a
step within 30 %, half of the single ops within a factor of 1.5. Not modelled: the first touch of
results above 32 MiB, which on a CPU can take longer than computing them. Good enough to plan a step
that does not fit; profile where the step can run.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import flop_counter

from ..masks import bernoulli
from ..program import Kind, ValueRef
from .machine import PRESETS, Machine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..captured import Captured
    from ..program import Call, Program, ProgramOp, ValueMeta

_log = logging.getLogger(__name__)

_aten: Any = torch.ops.aten
_counter: Any = flop_counter
_CONVOLUTIONS = {_aten.convolution, _aten._convolution, _aten.convolution_backward}
_CPU_ATTENTION = _aten._scaled_dot_product_flash_attention_for_cpu
_CPU_ATTENTION_BACKWARD = _aten._scaled_dot_product_flash_attention_for_cpu_backward
# Reads only the rows that it is asked for, not the whole table.
_GATHERS = {_aten.embedding, _aten.index_select, _aten.gather, _aten.index}

# Cost of one element, in operations of a matrix product on the same core. Measured on one core of
# an x86 server with AVX2; an operator that is not listed is bound by memory traffic.
ELEMENT_COST: dict[Any, float] = {
    _aten.exp: 100,
    _aten.log: 120,
    _aten.sigmoid: 80,
    _aten.silu: 90,
    _aten.silu_backward: 100,
    _aten.gelu: 90,
    _aten.gelu_backward: 120,
    _aten.erf: 150,
    _aten.tanh: 300,
    _aten.sin: 150,
    _aten.cos: 150,
    _aten.pow: 12,
    _aten._softmax: 90,
    _aten._safe_softmax: 350,
    _aten._log_softmax: 90,
    _aten._log_softmax_backward_data: 90,
    _aten.native_dropout: 1000,
    _aten.native_dropout_backward: 130,
    _aten.bernoulli: 1000,
    bernoulli: 750,
    _aten.where: 120,
    _aten._native_batch_norm_legit: 200,
    _aten._native_batch_norm_legit_functional: 200,
    _aten.native_batch_norm: 200,
    _aten._batch_norm_with_update: 200,
    _aten._batch_norm_with_update_functional: 200,
    _aten.native_batch_norm_backward: 100,
    _aten.batch_norm_backward: 100,
    _aten.max_pool2d_with_indices: 500,
    _aten.embedding_dense_backward: 20,
}


def roofline_times(captured: Captured, machine: Machine | str | None = None) -> list[int]:
    """Nanoseconds of each op of the graph, from shapes alone.

    Works for steps whose parameters and inputs are fake or on the `meta` device.

    Parameters
    ----------
    captured
        The step.
    machine
        A machine, the name of a preset, or None for the device of the step (measured once).
    """
    if isinstance(machine, str):
        machine = Machine.named(machine)
    if machine is None:
        known = captured.device.type == "cpu" or (
            captured.device.type == "cuda" and torch.cuda.is_available()
        )
        machine = Machine.measured(captured.device) if known else PRESETS["cpu"]
    program = captured.program
    return [op_time(program, op, machine) for op in program.ops]


def op_time(program: Program, op: ProgramOp, machine: Machine) -> int:
    """Nanoseconds of one op of a program."""
    metas = program.value_meta
    if op.kind is Kind.CALL and op.call is not None:
        return call_time(op.call, metas, machine)
    if op.kind in (Kind.BACKWARD, Kind.DELIVER):
        return 0
    values = {*op.reads, *op.writes}
    moved = 2.0 * max((value_bytes(metas[v]) for v in values), default=0)
    return machine.overhead_ns + math.ceil(moved / machine.bandwidth * 1e9)


def call_time(call: Call, metas: Sequence[ValueMeta], machine: Machine) -> int:
    """Nanoseconds of one call whose values look like `metas`."""
    packet = getattr(call.target, "_overloadpacket", call.target)
    seconds = call_bytes(call, metas) / machine.bandwidth
    operations = call_flops(call, metas)
    if operations:
        dtype = next((metas[v].dtype for v in call.refs()), torch.float32)
        reduced = packet in _CONVOLUTIONS and _tf32_convolutions()
        seconds = max(seconds, operations / machine.rate(dtype, reduced=reduced))
    elif packet in ELEMENT_COST:
        elements = max(math.prod(metas[v].shape) for v in _values(call))
        seconds = max(seconds, elements * ELEMENT_COST[packet] / machine.elementwise)
    return machine.overhead_ns + math.ceil(seconds * 1e9)


def _tf32_convolutions() -> bool:
    """Whether cuDNN may round float32 inputs of convolutions."""
    convolution: Any = torch.backends.cudnn
    return bool(convolution.conv.fp32_precision == "tf32")


def call_flops(call: Call, metas: Sequence[ValueMeta]) -> int:
    """Multiplications and additions of a matrix product, convolution or attention; 0 for others."""
    packet = getattr(call.target, "_overloadpacket", call.target)
    try:
        return _flops(packet, call, metas)
    except Exception as error:  # an unusual call must not stop the planning of the whole step
        _log.warning("flops of %s not counted: %s", packet, error)
        return 0


def _flops(packet: Any, call: Call, metas: Sequence[ValueMeta]) -> int:
    args, kwargs = _on_meta(call.args, metas), _on_meta(call.kwargs, metas)
    if packet is _aten.convolution_backward:
        # The library's formula ignores groups. Each gradient costs what the forward does.
        gradient, inputs, weight = (tensor.shape for tensor in args[:3])
        transposed, wanted = args[7], args[10]
        moving = inputs if transposed else gradient
        forward = 2 * math.prod(moving) * math.prod(weight) // int(weight[0])
        return int(forward * sum(map(bool, wanted[:2])))
    if packet is _CPU_ATTENTION:
        return int(_counter.sdpa_flop_count(*(tensor.shape for tensor in args[:3])))
    if packet is _CPU_ATTENTION_BACKWARD:
        return int(_counter.sdpa_backward_flop_count(*(tensor.shape for tensor in args[:4])))
    formula = _counter.flop_registry.get(packet)
    if formula is None:
        return 0
    outputs = [None if v is None else _meta_tensor(metas[v]) for v in call.outputs]
    return int(formula(*args, **kwargs, out_val=outputs if call.unpack else outputs[0]))


def call_bytes(call: Call, metas: Sequence[ValueMeta]) -> int:
    """Bytes that a call reads and writes: each distinct value once, broadcast elements once."""
    packet = getattr(call.target, "_overloadpacket", call.target)
    reads, writes = set(call.refs()), [v for v in call.outputs if v is not None]
    written = sum(value_bytes(metas[v]) for v in writes)
    if packet in _GATHERS:
        return written + sum(min(value_bytes(metas[v]), written) for v in reads)
    return written + sum(value_bytes(metas[v]) for v in reads)


def value_bytes(meta: ValueMeta) -> int:
    """Bytes of the distinct elements of a value."""
    sizes = [n for n, step in zip(meta.shape, meta.stride, strict=True) if step or n == 0]
    return math.prod(sizes) * meta.dtype.itemsize


def _values(call: Call) -> list[int]:
    return [*call.refs(), *(v for v in call.outputs if v is not None)]


def _meta_tensor(meta: ValueMeta) -> torch.Tensor:
    return torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype, device="meta")


def _on_meta(argument: Any, metas: Sequence[ValueMeta]) -> Any:
    """An argument with tensors on the meta device in the place of values."""
    if isinstance(argument, ValueRef):
        return _meta_tensor(metas[argument.index])
    if isinstance(argument, (tuple, list)):
        return [_on_meta(item, metas) for item in argument]
    if isinstance(argument, dict):
        return {key: _on_meta(value, metas) for key, value in argument.items()}
    return argument
