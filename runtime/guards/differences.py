"""Says in one line how a call, or the module, differs from what was captured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from ...frontends.torch.outside.alike import same_literal, same_strides
from ...frontends.torch.outside.modules import modules_of
from ...frontends.torch.sources import INFERENCE, NO_INFERENCE
from ...solver.errors import ReplayError, a_type
from ..distributed.fsdp import PLAIN
from ..step.flatten import leaf_names
from .all_hooks import hook_differences
from .ambient import ambient_differences
from .argument_differences import argument_differences, cast_difference
from .difference import ADVICE, Difference

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ...frontends.torch.outside.behaviour import Behaviour
    from ...frontends.torch.program import Program
    from .guards import Guards


def explain(
    guards: Guards, model: nn.Module, loss_fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> ReplayError:
    """The error that names the first difference."""
    for found in differences(guards, model, loss_fn, args, kwargs):
        return ReplayError(str(found))
    return ReplayError(f"the call differs from the captured one: {ADVICE}")


def differences(
    guards: Guards, model: nn.Module, loss_fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[Difference]:
    """All differences from what `guards` were made for, found one by one."""
    program = guards.program
    yield from _training_differences(program, model, loss_fn)
    for words in _behaviour_differences(program, guards.behaviours, model, loss_fn):
        yield Difference(words, "", True)
    yield from _settings_differences(program, model, loss_fn)
    yield from _outside_differences(guards.behaviours, model, loss_fn)
    for what, advice in hook_differences():
        yield Difference(what, advice, True)
    for what, advice in ambient_differences(program):
        yield Difference(what, advice, False)
    yield from argument_differences(program, args, kwargs, guards.exact)
    yield from _state_differences(guards, model, loss_fn)
    yield from _overlap_differences(guards, model, loss_fn, args, kwargs)


def _named_tensors(model: nn.Module, loss_fn: Any) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for path, module in modules_of(model, loss_fn).items():
        prefix = f"{path}." if path else ""
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None:
                found[f"{prefix}{name}"] = tensor
    return found


def _training_differences(program: Program, model: nn.Module, loss_fn: Any) -> Iterator[Difference]:
    modules = modules_of(model, loss_fn)
    for path, flag in program.training.items():
        where = f"module {path}" if path else "the module"
        if path not in modules:
            yield Difference(f"{where} is gone since capture", "capture again", True)
        elif modules[path].training is not flag:
            now, then = ("train", "eval") if not flag else ("eval", "train")
            yield Difference(
                f"{where} is in {now} mode and was captured in {then} mode",
                f"call .{then}() on it, or capture and solve again",
                False,
            )


def _behaviour_differences(
    program: Program, behaviours: Sequence[Behaviour], model: nn.Module, loss_fn: Any
) -> Iterator[str]:
    modules = modules_of(model, loss_fn)
    specs = {spec.value: spec for spec in program.inputs}
    tensors: dict[int, torch.Tensor] = {}
    for then in behaviours:
        if then.path not in modules:
            yield f"module {then.path} is gone since capture: capture again"
            continue
        words = then.difference(modules[then.path])
        if words is not None:
            yield words
        prefix = f"{then.path}." if then.path else ""
        state = modules[then.path].__dict__
        places = [
            (f"{prefix}{name}", value, state.get(name)) for name, value in then.tensors.items()
        ]
        places += [(p.label, p.value, p.read(modules)) for p in then.outside if p.value >= 0]
        for where, value, found in places:
            if not isinstance(found, torch.Tensor):
                yield f"{where} was a tensor when captured and is none now: capture again"
                continue
            meta = program.value_meta[value]
            looks, looked = (
                (tuple(found.shape), found.dtype, found.device),
                (meta.shape, meta.dtype, meta.device),
            )
            if looks != looked:
                yield (
                    f"tensor {where} is {_words(*looks)}; the plan was made for "
                    f"{_words(*looked)}: capture and solve again"
                )
            if found.is_inference():
                yield f"tensor {where} {INFERENCE}: {NO_INFERENCE}"
            if found.requires_grad and not specs[value].requires_grad:
                yield (
                    f"tensor {where} requires a gradient now and did not when captured: "
                    "capture and solve again"
                )
            if tensors.setdefault(value, found) is not found:
                yield f"{where} and another attribute were one tensor when captured: capture again"


def _outside_differences(
    behaviours: Sequence[Behaviour], model: nn.Module, loss_fn: Any
) -> Iterator[Difference]:
    """Numbers outside of the modules that are others than they were."""
    modules = modules_of(model, loss_fn)
    for place in (place for then in behaviours for place in then.outside if place.value < 0):
        what = place.difference(modules)
        if what is not None:
            yield Difference(
                f"{what}, which is a constant of the plan", "capture and solve again", False, True
            )


def _settings_differences(program: Program, model: nn.Module, loss_fn: Any) -> Iterator[Difference]:
    modules = modules_of(model, loss_fn)
    for path, name, value in program.settings:
        if path not in modules:
            continue  # named as gone before
        found = getattr(modules[path], name, None)
        if not same_literal(found, value):
            where = f"{path}.{name}" if path else name
            yield Difference(
                f"{where} is {found!r} and was {value!r} when captured, which is a constant of the "
                "plan",
                "capture and solve again",
                False,
                True,
            )


def _state_differences(guards: Guards, model: nn.Module, loss_fn: Any) -> Iterator[Difference]:
    program, late, exact = guards.program, guards.late or (), guards.exact
    tensors = _named_tensors(model, loss_fn)
    again = "capture and solve again"
    for place, spec in enumerate(guards.inputs):
        if spec.kind not in ("param", "buffer") or place in late:
            continue
        kind = "parameter" if spec.kind == "param" else "buffer"
        tensor = tensors.get(spec.fqn)
        if tensor is None:
            flat = any("_is_fsdp_managed_module" in m.__dict__ for m in model.modules())
            advice = "FullyShardedDataParallel needs use_orig_params=True" if flat else ""
            yield Difference(
                f"the module has no {kind} {spec.fqn} any more", advice or "capture again", True
            )
            continue
        if type(tensor) not in PLAIN:
            yield Difference(
                f"{kind} {spec.fqn} is {a_type(type(tensor))} now (tensor parallelism, or a "
                "sharding other than fully_shard)",
                "a replayed step computes on plain tensors only",
                True,
            )
            continue
        if tensor.is_inference():
            yield Difference(f"{kind} {spec.fqn} {INFERENCE}", NO_INFERENCE, True)
        meta = program.value_meta[spec.value]
        found = (tuple(tensor.shape), tensor.dtype, tensor.device)
        if found != (meta.shape, meta.dtype, meta.device):
            yield Difference(
                f"{kind} {spec.fqn} is {_words(*found)}; the plan was made for "
                f"{_words(meta.shape, meta.dtype, meta.device)}",
                again,
                found[0] != meta.shape,
            )
        elif not same_strides(tensor, meta.stride):
            yield Difference(
                f"{kind} {spec.fqn} has strides {list(tensor.stride())}; the plan was made for "
                f"{list(meta.stride)}",
                again,
                False,
            )
        if spec.kind == "param" and tensor.requires_grad and not spec.requires_grad:
            yield Difference(
                f"parameter {spec.fqn} requires a gradient now and was frozen when captured",
                again,
                False,
            )
        words = cast_difference(spec, tensor)
        if words:
            yield Difference(f"{kind} {spec.fqn} {words}", again, False)
        if exact and spec.kind == "param" and spec.requires_grad and not tensor.requires_grad:
            yield Difference(
                f"parameter {spec.fqn} is frozen now and was trained when captured", again, False
            )
    for group in program.shared:
        first = tensors.get(group[0])
        for other in group[1:]:
            if tensors.get(other) is not first:
                yield Difference(
                    f"{group[0]} and {other} were one tensor when captured and are two now",
                    "capture again",
                    True,
                )


def _overlap_differences(
    guards: Guards, model: nn.Module, loss_fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[Difference]:
    flat, spec = pytree.tree_flatten((args, kwargs))
    if not guards.overlaps.any or spec != guards.program.in_spec:
        return
    tensors, names = _named_tensors(model, loss_fn), leaf_names(spec)
    given = [
        (flat[i.position], names[i.position])
        if i.kind == "input"
        else (tensors.get(i.fqn), f"the {i.kind} {i.fqn}")
        for i in guards.inputs
    ]
    plain = [t if isinstance(t, torch.Tensor) and type(t) in PLAIN else None for t, _ in given]
    found = guards.overlaps.first(plain)
    if found is not None:
        one, other = (given[place][1] for place in found)
        of_call = any(guards.inputs[place].kind == "input" for place in found)
        yield Difference(
            f"{one} shares memory with {other}, and the step changes one of them in place",
            "pass a clone" if of_call else "give it memory of its own",
            not of_call,
        )


def _words(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> str:
    return f"{str(dtype).removeprefix('torch.')}{list(shape)} on {device}"
