"""What cannot be captured exactly is refused by name; what the trace touched is put back."""

from __future__ import annotations

import contextlib
import random
import sys
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from ...solver.errors import CaptureError
from .nested import Nested, copied, refill
from .outside.arrays import Numbers
from .outside.hooks import hooks_on_all
from .processes import distributed, is_sharded
from .sources import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .step import Root

_FORWARD = ("_forward_hooks", "_forward_pre_hooks")
_BACKWARD = ("_backward_hooks", "_backward_pre_hooks")
# hooks that only compute, or only hand outputs on within the step
_PURE_HOOKS = (
    "torch.nn.utils",
    "transformers.utils.output_capturing",
    "transformers.modeling_utils",
)
# set once by the libraries themselves, true whether or not the step is replayed
_PRIVATE = ("_flat_weight", "_output_capturing_hooks_installed")
# what a trace says about a tensor of another trace
_STALE = "Unexpected fake"
_CACHES = "if it only fills a cache, run the model once before capture"
# what every module has: its hooks and registered members, which are dealt with by themselves
_OF_MODULES = frozenset(nn.Module().__dict__)
_COPIED = (dict, list, set)
_REGISTERED = ("_parameters", "_buffers", "_modules")


def refuse_modules(model: nn.Module, loss_fn: Callable[..., Any] | None, trace_hooks: bool) -> None:
    """Refuse modules whose effects a replayed step would lose."""
    for kind, _ in hooks_on_all():
        raise CaptureError(
            f"a {kind} is registered on all modules of the process; remove it before capture"
        )
    roots = [("", model)]
    if isinstance(loss_fn, nn.Module):
        roots.append(("loss_fn", loss_fn))
        if hasattr(model, "loss_fn"):
            raise CaptureError(
                "the model has an attribute loss_fn and the loss is a module: names would clash; "
                "pass the loss as a function"
            )
    for prefix, root in roots:
        for name, module in root.named_modules(prefix=prefix):
            _refuse_module(name or "the model", module, trace_hooks)


def _refuse_module(name: str, module: nn.Module, trace_hooks: bool) -> None:
    kind = type(module).__name__
    if any(getattr(module, attribute, None) for attribute in _BACKWARD):
        raise CaptureError(
            f"{name} ({kind}) has a full backward hook, which would not run in a replayed step; "
            "remove it, or put a hook on its parameters"
        )
    if is_lazy_module(module):
        raise CaptureError(
            f"{name} ({kind}) has parameters without a shape as yet: run the model once before "
            "capture"
        )
    if hasattr(module, "_orig_mod"):
        raise CaptureError(f"{name} is compiled: capture the module it was made from (_orig_mod)")
    if isinstance(module, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        raise CaptureError(f"{name} is a {kind}: capture its .module and wrap the replayed one")
    if is_sharded(module):
        raise CaptureError(
            f"{name} ({kind}) is sharded by fully_shard: capture the model first, then shard the "
            "replayed module (its blocks, then itself)"
        )
    if any(c.__name__ == "FullyShardedDataParallel" for c in type(module).__mro__):
        raise CaptureError(
            f"{name} is a {kind} (FSDP1): capture the module in it, and use fully_shard on the "
            "replayed one"
        )
    if isinstance(module, nn.SyncBatchNorm) and module.training and _world_size(module) > 1:
        raise CaptureError(
            f"{name} ({kind}) communicates in its forward, which a plan cannot repeat: use "
            "BatchNorm, whose statistics are each process's own, or GroupNorm"
        )
    if isinstance(module, torch.jit.ScriptModule):
        raise CaptureError(f"{name} is a TorchScript module: capture the Python one")
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.sparse:
        raise CaptureError(f"{name} ({kind}) has sparse gradients (sparse=True): not supported")
    for attribute in () if trace_hooks else _FORWARD:
        for hook in getattr(module, attribute, {}).values():
            origin = getattr(hook, "__module__", None) or type(hook).__module__
            if not str(origin).startswith(_PURE_HOOKS):
                raise CaptureError(
                    f"{name} ({kind}) has a forward hook, which would run at capture only; remove "
                    "it, or pass trace_hooks=True if it only computes"
                )


def is_lazy_module(module: nn.Module) -> bool:
    """Whether parameters or buffers of a lazy module get their shapes in its first forward."""
    members = (*module._parameters.values(), *module._buffers.values())
    return any(m is not None and torch.nn.parameter.is_lazy(m) for m in members)


def _world_size(module: nn.SyncBatchNorm) -> int:
    """Processes that a layer shares its statistics with."""
    dist = distributed()
    return 1 if dist is None else int(dist.get_world_size(module.process_group))


@contextlib.contextmanager
def untouched(root: Root) -> Iterator[None]:
    """Put back what the traced code changes in modules and generators, and refuse if it did.

    Raises
    ------
    CaptureError
        If the step keeps Python state, or draws from generators that a plan cannot restore.
    """
    modules = [(shown(name), m) for name, m in root.named_modules() if m is not root]
    before = [(name, m, _state(m), dict(m.__dict__)) for name, m in modules]
    registered = [[dict(m.__dict__[kind]) for kind in _REGISTERED] for _, m in modules]
    nested = Nested()
    for name, module in modules:
        for key, value in module.__dict__.items():
            if key not in _OF_MODULES and not key.startswith(_PRIVATE):
                nested.note(
                    f"forward of {_where(name, module)} changes its attribute {key!r}", value
                )
    generators = _generators()
    states = [(name, get(), put) for name, get, put in generators]
    changed = advice = ""
    stale: CaptureError | None = None
    try:
        yield
    except CaptureError as error:
        if _STALE not in str(error):
            raise
        stale = error  # because of a tensor that the dry run has left in an attribute
    finally:
        for (name, get, put), (_, state, _) in zip(generators, states, strict=True):
            if not _same(get(), state):
                put(state)
                changed = changed or f"the step itself draws from, or seeds, {name}"
                advice = advice or "use PyTorch's default generator, and seed it outside"
        deeper = nested.restore(_same, _PRIVATE)
        for (name, module, state, everything), members in zip(before, registered, strict=True):
            found = _restore_members(module, everything, members)
            found = _restore(module, state, everything) or found
            if found:
                where = _where(name, module)
                changed = changed or f"forward of {where} sets its attribute {found!r}"
                advice = advice or _CACHES
        changed = changed or deeper
        advice = advice or _CACHES
    if changed:
        raise CaptureError(f"{changed}, which a replayed step would not do; {advice}") from stale
    if stale is not None:
        raise stale


def _where(name: str, module: nn.Module) -> str:
    """Path and class of a module."""
    return f"{name} ({type(module).__name__})" if name else type(module).__name__


def _state(module: nn.Module) -> dict[str, Any]:
    """Attributes of a module, containers copied one level deep."""
    return {key: copied(value) for key, value in module.__dict__.items() if key not in _REGISTERED}


def _restore_members(
    module: nn.Module, everything: dict[str, Any], members: list[dict[str, Any]]
) -> str:
    """Undo changes of parameters, buffers and submodules; returns the name of one that changed."""
    found = ""
    for kind, old in zip(_REGISTERED, members, strict=True):
        now = module.__dict__[kind] = everything[kind]
        for key in [*old, *now]:
            if key not in now or key not in old or now[key] is not old[key]:
                found = found or key
        if found:
            now.clear()
            now.update(old)
    return found


def _restore(module: nn.Module, state: dict[str, Any], everything: dict[str, Any]) -> str:
    """Undo changes of attributes; returns the name of one that really changed, or nothing."""
    found = ""
    # what weight_norm, spectral_norm and pruning compute anew in each forward
    derived = {
        getattr(hook, key, None)
        for hook in module._forward_pre_hooks.values()
        for key in ("name", "_tensor_name")
    }
    for key in list(module.__dict__):
        if key in _REGISTERED:
            continue
        now = module.__dict__[key]
        if key.startswith(_PRIVATE) or key == "_forward_hooks" or key in derived:
            if key not in state:
                del module.__dict__[key]
                continue
            if isinstance(state[key], (list, dict)):
                refill(everything[key], state[key])
            module.__dict__[key] = everything[key]
            continue
        if key not in state:
            found = found or key
            del module.__dict__[key]
        elif not _same(now, state[key]):
            found = found or key
            old = everything[key]
            if old is not state[key]:
                refill(old, state[key])
            module.__dict__[key] = old
        else:
            module.__dict__[key] = everything[key]
    for key in state.keys() - module.__dict__.keys():
        found = found or key
        module.__dict__[key] = everything[key]
    return found


def _same(a: Any, b: Any) -> bool:
    """Equality that never looks into tensors and never raises."""
    if a is b:
        return True
    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        plain = isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)
        return plain and a.dtype == torch.uint8 and b.dtype == torch.uint8 and torch.equal(a, b)
    # A copy of a user's own kind of dict or list may be a plain one.
    if type(a) is not type(b) and not any(isinstance(a, k) and isinstance(b, k) for k in _COPIED):
        return False
    if isinstance(a, (list, tuple, deque)):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same(a[k], b[k]) for k in a)
    if isinstance(a, (int, float, complex, str, bytes, bool, set, frozenset)):
        return bool(a == b)
    held = Numbers.of(a)
    if held is not None:
        return held.same(b)
    if isinstance(a, np.ndarray):  # of objects
        return a.shape == b.shape and _same(list(a.flat), list(b.flat))
    return isinstance(a, np.generic) and a.tobytes() == b.tobytes()


def _generators() -> list[tuple[str, Callable[[], Any], Callable[[Any], Any]]]:
    """The process-wide generators: name, how to read the state and how to set it."""
    found: list[tuple[str, Callable[[], Any], Callable[[Any], Any]]] = [
        ("PyTorch's generator", torch.get_rng_state, torch.set_rng_state),
        ("Python's random module", random.getstate, random.setstate),
    ]
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        found.append(("CUDA's generator", torch.cuda.get_rng_state, torch.cuda.set_rng_state))
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        found.append(
            (
                "NumPy's generator",
                lambda: numpy.random.get_state(legacy=True),
                numpy.random.set_state,
            )
        )
    return found
