"""Checks, before each step, that the call is the one that was captured.

A captured program has shapes, data types, literals and training flags built in. One generated
function resolves parameters by name from the live module and compares everything; it returns None
at the first difference, and `Guards.explain` then finds out which one, at leisure.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from ..frontends.torch.program import LiteralGuard, TensorGuard
from ..solver.errors import ReplayError
from .flatten import children, describe_structure, flatten_lines, leaf_names
from .literals import Namespace, write_argument
from .source import build_functions

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..frontends.torch.program import InputSpec, Program

LOSS = "loss_fn"
_ADVICE = "capture and solve again for it, or call the original model"


class Guards:
    """Guards of one program.

    Attributes
    ----------
    fast
        `fast(model, loss_fn, args, kwargs)`: the program's inputs (tangents not counted) in order,
        or None if something differs.
    source
        Its source.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.inputs = [spec for spec in program.inputs if spec.kind != "tangent"]
        self.source, namespace = _write(program, self.inputs)
        self.fast: Callable[..., list[torch.Tensor] | None]
        (self.fast,) = build_functions(self.source, namespace, ("resolve",), "guards")
        self._signatures: dict[type, inspect.Signature | None] = {}

    def runs_plain(self, model: nn.Module, loss_fn: Any) -> bool:
        """True if the whole module is in eval mode and the program was captured in training."""
        if not any(self.program.training.values()):
            return False
        modules = _modules(model, loss_fn)
        return not any(modules[path].training for path in self.program.training if path in modules)

    def normalise(
        self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """The same call in the captured form (positional or by keyword, defaults given or not).

        None if the arguments do not fit the signature of `forward`, or no form of them matches.
        """
        try:
            signature = inspect.signature(model.forward)
            bound = signature.bind(*args, **kwargs)
        except (TypeError, ValueError):
            return None
        bound.apply_defaults()
        given = _by_name(signature, bound)
        sample = pytree.tree_unflatten(
            [None] * self.program.in_spec.num_leaves, self.program.in_spec
        )
        try:
            wanted = _by_name(signature, signature.bind(*sample[0], **sample[1]))
        except TypeError:
            return None
        for name, value in given.items():
            if name not in wanted:
                parameter = signature.parameters.get(name)
                if parameter is None or value is not parameter.default:
                    return None
        if any(name not in given for name in wanted):
            return None
        names = list(signature.parameters)
        positional = tuple(given[name] for name in names[: len(sample[0])] if name in given)
        if len(positional) != len(sample[0]):
            return None
        return positional, {name: given[name] for name in sample[1]}

    def explain(
        self, model: nn.Module, loss_fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> ReplayError:
        """The error that names the first difference."""
        return ReplayError(
            _training_difference(self.program, model, loss_fn)
            or _settings_difference(self.program, model, loss_fn)
            or _autocast_difference(self.program)
            or _argument_difference(self.program, args, kwargs)
            or self._state_difference(model, loss_fn)
            or f"the call differs from the captured one: {_ADVICE}"
        )

    def _state_difference(self, model: nn.Module, loss_fn: Any) -> str | None:
        tensors = _named_tensors(model, loss_fn)
        for spec in self.inputs:
            if spec.kind not in ("param", "buffer"):
                continue
            kind = "parameter" if spec.kind == "param" else "buffer"
            tensor = tensors.get(spec.fqn)
            if tensor is None:
                return f"the module has no {kind} {spec.fqn} any more: capture again"
            meta = self.program.value_meta[spec.value]
            found = (tuple(tensor.shape), tensor.dtype, tensor.device)
            if found != (meta.shape, meta.dtype, meta.device):
                return (
                    f"{kind} {spec.fqn} is {_words(*found)}; the plan was made for "
                    f"{_words(meta.shape, meta.dtype, meta.device)}: capture and solve again"
                )
            if spec.kind == "param" and tensor.requires_grad and not spec.requires_grad:
                return (
                    f"parameter {spec.fqn} requires a gradient now and was frozen when captured: "
                    "capture and solve again"
                )
        for group in self.program.shared:
            first = tensors.get(group[0])
            for other in group[1:]:
                if tensors.get(other) is not first:
                    return (
                        f"{group[0]} and {other} were one tensor when captured and are two now: "
                        "capture again"
                    )
        return None


def _by_name(signature: inspect.Signature, bound: inspect.BoundArguments) -> dict[str, Any]:
    """Arguments by name, `**kwargs` merged in; `*args` stay under their own name."""
    found: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            found.update(value)
        elif kind is not inspect.Parameter.VAR_POSITIONAL or value:
            found[name] = value
    return found


def _modules(model: nn.Module, loss_fn: Any) -> dict[str, nn.Module]:
    found = dict(model.named_modules(remove_duplicate=False))
    if isinstance(loss_fn, nn.Module):
        for name, module in loss_fn.named_modules(remove_duplicate=False):
            found[f"{LOSS}.{name}" if name else LOSS] = module
    return found


def _named_tensors(model: nn.Module, loss_fn: Any) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for path, module in _modules(model, loss_fn).items():
        prefix = f"{path}." if path else ""
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None:
                found[f"{prefix}{name}"] = tensor
    return found


def _training_difference(program: Program, model: nn.Module, loss_fn: Any) -> str | None:
    modules = _modules(model, loss_fn)
    for path, flag in program.training.items():
        where = f"module {path}" if path else "the module"
        if path not in modules:
            return f"{where} is gone since capture: capture again"
        if modules[path].training is not flag:
            now, then = ("train", "eval") if not flag else ("eval", "train")
            return (
                f"{where} is in {now} mode and was captured in {then} mode: "
                f"call .{then}() on it, or capture and solve again"
            )
    return None


def _settings_difference(program: Program, model: nn.Module, loss_fn: Any) -> str | None:
    modules = _modules(model, loss_fn)
    for path, name, value in program.settings:
        if path not in modules:
            return f"module {path} is gone since capture: capture again"
        found = getattr(modules[path], name, None)
        if not same_literal(found, value):
            where = f"{path}.{name}" if path else name
            return (
                f"{where} is {found!r} and was {value!r} when captured, which is a constant of the "
                "plan: capture and solve again"
            )
    return None


def _autocast_kinds(program: Program) -> list[str]:
    """Device types whose autocast matters."""
    kinds = {"cpu", *(meta.device.type for meta in program.value_meta)}
    return sorted((kinds | {kind for kind, _ in program.autocast}) - {"meta"})


def _autocast_difference(program: Program) -> str | None:
    planned = dict(program.autocast)
    for kind in _autocast_kinds(program):
        found = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        wanted = planned.get(kind)
        if found is not wanted:
            now, then = (f"on ({dtype})" if dtype else "off" for dtype in (found, wanted))
            return (
                f"autocast on {kind} is {now} and was {then} when captured: call under the same "
                "autocast, or capture and solve again"
            )
    return None


def _argument_difference(
    program: Program, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> str | None:
    flat, spec = pytree.tree_flatten((args, kwargs))
    names = leaf_names(program.in_spec)
    if spec != program.in_spec:
        sample = pytree.tree_unflatten(names, program.in_spec)
        extra = [key for key in kwargs if key not in sample[1]]
        missing = [key for key in sample[1] if key not in kwargs]
        if len(args) != len(sample[0]):
            what = f"{len(args)} positional arguments; the plan was made for {len(sample[0])}"
        elif extra or missing:
            what = " and ".join(
                [f"no argument {key!r}" for key in missing]
                + [f"the unplanned argument {key!r}" for key in extra]
            )
        else:
            given, wanted = (
                " and ".join(describe_structure(part) for part in children(tree))
                for tree in (spec, program.in_spec)
            )
            what = f"arguments of structure {given}; the plan was made for {wanted}"
        return f"the call has {what}: {_ADVICE}"
    for name, leaf, guard in zip(names, flat, program.guards, strict=True):
        found = _leaf_difference(leaf, guard)
        if found is not None:
            return f"{name} {found}: {_ADVICE}"
    return None


def _leaf_difference(leaf: Any, guard: TensorGuard | LiteralGuard) -> str | None:
    if isinstance(guard, LiteralGuard):
        if same_literal(leaf, guard.value):
            return None
        shown = "a tensor" if isinstance(leaf, torch.Tensor) else repr(leaf)
        return f"is {shown}; the plan was made for the value {guard.value!r}"
    if not isinstance(leaf, torch.Tensor):
        return f"is {leaf!r}; the plan was made for a tensor"
    if tuple(leaf.shape) != guard.shape:
        return f"has shape {list(leaf.shape)}; the plan was made for {list(guard.shape)}"
    if leaf.dtype is not guard.dtype:
        return f"is {leaf.dtype}; the plan was made for {guard.dtype}"
    if leaf.device != guard.device:
        return f"is on {leaf.device}; the plan was made for {guard.device}"
    if not same_strides(leaf, guard.stride):
        return (
            f"has strides {list(leaf.stride())}; the plan was made for {list(guard.stride)} "
            "(.contiguous() or .to(memory_format=...) may be all it needs)"
        )
    if leaf.requires_grad and not guard.requires_grad:
        return "requires a gradient; the plan was made for one that does not"
    return None


def _words(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> str:
    return f"{str(dtype).removeprefix('torch.')}{list(shape)} on {device}"


def same_strides(tensor: torch.Tensor, stride: tuple[int, ...]) -> bool:
    """Equal strides in every dimension that has more than one element."""
    if tensor.numel() == 0:
        return True
    found = tensor.stride()
    return all(a == b for a, b, size in zip(found, stride, tensor.shape, strict=True) if size > 1)


def same_literal(value: Any, wanted: Any) -> bool:
    """Equal, of the same type, and so for NaN."""
    if value is wanted:
        return True
    if type(value) is not type(wanted):
        return False
    try:
        return bool(value == wanted) or bool(value != value and wanted != wanted)
    except (RuntimeError, TypeError, ValueError):
        return False


def _write(program: Program, inputs: list[InputSpec]) -> tuple[str, dict[str, Any]]:
    """Source of the fast check, and the objects it refers to."""
    names = Namespace()
    names.globals.update(
        {"Tensor": torch.Tensor, "same_literal": same_literal, "same_strides": same_strides}
    )
    body: list[str] = []
    unpack = flatten_lines(program.in_spec, "a")
    if unpack is None:
        names.globals["flatten"] = pytree.tree_flatten
        names.globals["in_spec"] = program.in_spec
        body += ["flat, spec = flatten((args, kwargs))", "if spec != in_spec: return None"]
        targets = ", ".join(f"a{i}" for i in range(len(program.guards)))
        if targets:
            body.append(f"{targets}{',' if len(program.guards) == 1 else ''} = flat")
    else:
        body += unpack
    for place, guard in enumerate(program.guards):
        body.append(f"if not ({_leaf_test(f'a{place}', guard, names)}): return None")
    body += _state_lines(program, inputs, names)
    results = []
    for place, spec in enumerate(inputs):
        if spec.kind == "input":
            results.append(f"a{spec.position}")
        elif spec.kind == "constant":
            results.append(names.bind(spec.tensor, f"constant_{place}"))
        else:
            results.append(f"t{place}")
    lines = ["def resolve(model, loss_fn, args, kwargs):", "    try:"]
    lines += [f"        {line}" for line in body]
    lines += [f"        return [{', '.join(results)}]"]
    lines += ["    except (AttributeError, KeyError, TypeError):", "        return None", ""]
    return "\n".join(lines), names.globals


def _leaf_test(name: str, guard: TensorGuard | LiteralGuard, names: Namespace) -> str:
    if isinstance(guard, LiteralGuard):
        value = guard.value
        if value is None or value is True or value is False:
            return f"{name} is {value}"
        if type(value) in (int, str):
            return f"type({name}) is {type(value).__name__} and {name} == {value!r}"
        return f"same_literal({name}, {names.bind(value, 'literal')})"
    words = [
        f"isinstance({name}, Tensor)",
        _tensor_test(name, guard.shape, guard.dtype, guard.device, names),
        f"({name}.stride() == {guard.stride!r} or same_strides({name}, {guard.stride!r}))",
    ]
    if not guard.requires_grad:
        words.append(f"not {name}.requires_grad")
    return " and ".join(words)


def _tensor_test(
    name: str,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    names: Namespace,
) -> str:
    return (
        f"{name}.shape == {tuple(shape)!r} and {name}.dtype is {names.bind(dtype, str(dtype))} "
        f"and {name}.device == {names.bind(device, str(device))}"
    )


def _state_lines(program: Program, inputs: list[InputSpec], names: Namespace) -> list[str]:
    """Walk the module tree once: training flags, parameters, buffers."""
    lines: list[str] = []
    module_names: dict[str, str] = {"": "model", LOSS: "loss_fn"}
    of_loss = any(
        path == LOSS or path.startswith(f"{LOSS}.")
        for path in (
            *program.training,
            *(spec.fqn for spec in inputs),
            *(path for path, _, _ in program.settings),
        )
    )

    def module(path: str) -> str:
        if path in module_names:
            return module_names[path]
        parent, _, name = path.rpartition(".")
        above = module(parent)
        found = module_names[path] = f"m{len(module_names)}"
        lines.append(f"{found} = {above}._modules[{name!r}]")
        return found

    def tensor(fqn: str, kind: str) -> str:
        path, _, name = fqn.rpartition(".")
        table = "_parameters" if kind == "param" else "_buffers"
        return f"{module(path)}.{table}[{name!r}]"

    if not of_loss:
        module_names.pop(LOSS)
    for path, flag in program.training.items():
        lines.append(f"if {module(path)}.training is not {flag}: return None")
    settings: dict[str, list[str]] = {}
    for path, name, value in program.settings:
        text = write_argument(value, names, lambda _: None)
        settings.setdefault(module(path), []).append(f"{module(path)}.{name} != {text}")
    lines.extend(f"if {' or '.join(tests)}: return None" for tests in settings.values())
    names.globals["autocast_on"] = torch.is_autocast_enabled
    names.globals["autocast_dtype"] = torch.get_autocast_dtype
    planned = dict(program.autocast)
    for kind in _autocast_kinds(program):
        test = f"autocast_on({kind!r})"
        if kind in planned:
            dtype = names.bind(planned[kind], str(planned[kind]))
            test = f"not {test} or autocast_dtype({kind!r}) is not {dtype}"
        lines.append(f"if {test}: return None")
    places: dict[str, str] = {}
    for place, spec in enumerate(inputs):
        if spec.kind not in ("param", "buffer"):
            continue
        lines.append(f"t{place} = {tensor(spec.fqn, spec.kind)}")
        places[spec.fqn] = f"t{place}"
        meta = program.value_meta[spec.value]
        test = _tensor_test(f"t{place}", meta.shape, meta.dtype, meta.device, names)
        if spec.kind == "param" and not spec.requires_grad:
            test += f" and not t{place}.requires_grad"
        lines.append(f"if not ({test}): return None")
    kinds = {spec.fqn: spec.kind for spec in inputs}
    for group in program.shared:
        known = next((fqn for fqn in group if fqn in places), None)
        if known is None:
            continue
        for fqn in group:
            if fqn != known:
                lines.append(f"if {tensor(fqn, kinds[known])} is not {places[known]}: return None")
    return lines
