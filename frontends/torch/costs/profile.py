"""Measures what every op of a captured step costs: time, output bytes, workspace.

Each distinct signature runs on synthetic arguments, alone on the device: profiling needs the memory
of the largest op, not of the step. Model, buffers and random state are left as they were. Results
are cached on disk; what the time budget does not cover is extrapolated with a roofline.
"""

from __future__ import annotations

import logging
import math
import statistics
from typing import TYPE_CHECKING, Any

import torch

from ....solver.errors import InputError
from ..program import Kind
from .bench import allocated_bytes, as_replayed
from .entries import Entry, entries_of, op_call, state_device
from .hardware import machine_text
from .libraries import with_libraries
from .machine import Machine
from .profile_cache import Measurement, ProfileCache
from .sampler import Sampler
from .synthetic import is_real

if TYPE_CHECKING:
    from ..captured import Captured
    from ..program import Program
    from .sampler import Progress

_log = logging.getLogger(__name__)

_TRUSTED_NS = 1_000_000  # a first run this long is close to the median of more


def profile(
    captured: Captured,
    *,
    budget_s: float = 60.0,
    cache: bool = True,
    progress: Progress | None = None,
) -> Captured:
    """The same step with measured times, workspaces and sizes.

    Parameters
    ----------
    captured
        The step; its device must be this machine's.
    budget_s
        Seconds to spend. The costliest signatures are timed first; those that come too late are
        run once for their memory, and get the time of that run or a scaled roofline; that may go
        on for as long again, or 30 s.
    cache
        Reuse and store measurements in the user's cache folder (`LOWTIDE_CACHE_DIR`).
    progress
        Called as `progress(done, total, operator)` before each signature.

    Returns
    -------
    Captured
        With `times`, `machine` and counts of measured signatures in `graph.meta`. How many come
        from the cache is logged, and not part of the graph.

    Raises
    ------
    InputError
        If the budget is not positive or the device is not available.
    """
    if not budget_s > 0:
        raise InputError(f"the profiling budget is {budget_s} s: it must be positive")
    device = captured.device
    if device.type not in ("cpu", "cuda") or (
        device.type == "cuda" and not torch.cuda.is_available()
    ):
        raise InputError(f"cannot profile on device {device}: use times='roofline'")
    store = ProfileCache(device) if cache else None
    machine = Machine.measured(device, cache=cache)
    entries = entries_of(captured.program, machine)
    if store is not None:
        for entry in entries:
            if entry.signature.portable:
                entry.found = store.get(entry.signature.key)
    todo = [e for e in entries if e.found is None or e.found.time_ns < 0]
    if store is not None:
        known = len(entries) - len(todo)
        _log.info("%d of %d distinct operator calls were timed before", known, len(entries))
    # What is left out at the end should matter least.
    todo.sort(key=lambda e: -e.roofline_ns * len(e.ops))
    cuda = [device] if device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices=cuda), as_replayed():
            Sampler(captured, budget_s).run(todo, progress)
    finally:
        # Interrupted or not: what was measured needs no second run.
        if store is not None:
            store.update(
                {
                    entry.signature.key: entry.found
                    for entry in todo
                    if entry.signature.portable and entry.found is not None
                }
            )
    return with_libraries(_with_measured(captured, entries))


def _with_measured(captured: Captured, entries: list[Entry]) -> Captured:
    """Put measurements into the graph."""
    program, graph = captured.program, captured.graph
    times = [op.time_ns for op in graph.ops]
    workspace = [op.workspace_bytes for op in graph.ops]
    sizes = [allocated_bytes(t.size_bytes, captured.device) for t in graph.tensors]
    _measure_resident(captured, sizes)
    free = (Kind.BACKWARD, Kind.DELIVER)
    for index in (i for i, op in enumerate(program.ops) if op.kind in free):
        times[index] = 0
    timed = [e for e in entries if e.found is not None and e.found.time_ns >= 0]
    scale = _scale(timed)
    for entry in entries:
        _compare_layouts(program, entry)
        estimate = _time(entry, scale)
        for index in entry.ops:
            times[index] = estimate
            if entry.found is not None:
                workspace[index] = _measured_bytes(program, index, entry.found, sizes)
    counts = f"{len(entries)} signatures, {len(timed)} timed, "
    counts += f"{sum(e.found is None for e in entries)} not runnable"
    meta = {"times": "measured", "machine": machine_text(captured.device), "profile": counts}
    return captured.with_costs(time_ns=times, workspace=workspace, sizes=sizes, meta=meta)


def _compare_layouts(program: Program, entry: Entry) -> None:
    """Tell of a result that has other strides than the trace took it to have."""
    if entry.found is None:
        return
    for value, real in zip(entry.call.outputs, entry.found.strides, strict=False):
        if value is None or not real:
            continue
        meta = program.value_meta[value]
        steps = zip(meta.shape, meta.stride, real, strict=False)
        if 0 not in meta.shape and any(size > 1 and a != b for size, a, b in steps):
            _log.warning(
                "%s gives strides %s for shape %s, not %s as in the captured graph: layouts after "
                "it, and so the predicted peak, may differ",
                entry.call.name,
                real,
                meta.shape,
                meta.stride,
            )
            return


def _measured_bytes(program: Program, index: int, found: Measurement, sizes: list[int]) -> int:
    """Workspace of an op; the sizes of its outputs go into `sizes`."""
    op = program.ops[index]
    call = op_call(program, op)
    assert call is not None
    storages: dict[int, int] = {}
    for element, value in enumerate(call.outputs):
        tensor = -1 if value is None else program.value_tensor[value]
        if tensor < 0 or element >= len(found.sizes) or found.sizes[element] < 0:
            continue
        twin = found.shares[element]
        owner = call.outputs[twin] if twin >= 0 else None
        if twin == -2 or (owner is not None and program.value_tensor[owner] != tensor):
            _log.warning(
                "%s: %s shares memory with another tensor when it runs, but not in the captured "
                "graph: the predicted peak is too high by up to its size",
                program.graph.ops[index].name,
                program.graph.tensors[tensor].name,
            )
            storages.setdefault(tensor, sizes[tensor])
            continue
        storages[tensor] = found.sizes[element]
    if op.kind is not Kind.RNG_STATE or state_device(program, op).type == "cpu":
        # Generator states live in host memory: on another device they are not counted.
        for tensor, size in storages.items():
            sizes[tensor] = size
    return max(0, found.peak_bytes - sum(storages.values()))


def _measure_resident(captured: Captured, sizes: list[int]) -> None:
    """Put the real storage bytes of parameters, buffers and constants into `sizes`."""
    for spec in captured.program.inputs:
        tensor: torch.Tensor | None = spec.tensor
        if spec.kind in ("param", "buffer"):
            tensor = _named(captured, spec.fqn)
        index = captured.program.value_tensor[spec.value]
        if tensor is not None and index >= 0 and is_real(tensor):
            sizes[index] = allocated_bytes(tensor.untyped_storage().nbytes(), captured.device)


def _named(captured: Captured, name: str) -> torch.Tensor | None:
    """The parameter or buffer of that name."""
    root: Any = captured.model
    if name.startswith("loss_fn."):
        root, name = captured.loss_fn, name.removeprefix("loss_fn.")
    path, _, last = name.rpartition(".")
    try:
        found = getattr(root.get_submodule(path), last)
    except AttributeError:
        return None
    return found if isinstance(found, torch.Tensor) else None


def _time(entry: Entry, scale: float) -> int:
    found = entry.found
    if found is not None and found.time_ns >= 0:
        return found.time_ns
    if found is not None and found.first_ns >= _TRUSTED_NS:
        return found.first_ns
    return max(1, round(entry.roofline_ns * scale))


def _scale(timed: list[Entry]) -> float:
    """Median of measured over roofline time."""
    ratios = [
        math.log(max(1, e.found.time_ns) / max(1, e.roofline_ns))
        for e in timed
        if e.found is not None
    ]
    return math.exp(statistics.median(ratios)) if ratios else 1.0
