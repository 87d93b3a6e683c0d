"""Writes the check of a call as one function: what it compares, line by line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from ...frontends.torch.autocasts import casts_are_kept
from ...frontends.torch.interface import TensorGuard
from ...frontends.torch.outside.alike import same_literal, same_strides
from ...frontends.torch.outside.modules import LOSS
from ...frontends.torch.questions import first_changed
from ..distributed.fsdp import PLAIN
from ..generate.literals import Namespace
from ..step.flatten import flatten_lines
from .all_hooks import hook_lines
from .ambient import ambient_lines
from .behaviour_lines import behaviour_lines
from .conditions import leaf_test, setting_test, stride_test, tensor_test
from .looks import Looks
from .place_lines import PlaceLines

if TYPE_CHECKING:
    from ...frontends.torch.interface import InputSpec
    from ...frontends.torch.outside.behaviour import Behaviour
    from ...frontends.torch.program import Program
    from .overlaps import Overlaps


def write_guard(
    program: Program,
    inputs: list[InputSpec],
    behaviours: tuple[Behaviour, ...],
    late: frozenset[int] | None,
    exact: bool,
    overlaps: Overlaps,
) -> tuple[str, dict[str, Any]]:
    """Source of the fast check, and the objects it refers to."""
    names = Namespace()
    names.globals.update(
        {"Tensor": torch.Tensor, "same_literal": same_literal, "same_strides": same_strides}
    )
    names.globals["plain"] = PLAIN
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
        body.append(f"if not ({leaf_test(f'a{place}', guard, names, exact)}): return None")
    body += _apart_lines(program)
    body += _state_lines(program, inputs, behaviours, names, late, exact)
    live = {value for found in behaviours for value in found.tensors.values()}
    live |= {place.value for found in behaviours for place in found.outside}
    results = []
    for place, spec in enumerate(inputs):
        if late is not None and place in late:
            results.append("None")
        elif spec.kind == "input":
            results.append(f"a{spec.position}")
        elif spec.kind == "constant" and spec.value not in live:
            results.append(names.bind(spec.tensor, f"constant_{place}"))
        else:
            results.append(f"t{place}")
    lines = ["def resolve(model, loss_fn, args, kwargs):", "    try:"]
    lines += [f"        {line}" for line in body]
    if program.questions:
        names.globals["first_changed"] = first_changed
        questions = names.bind(program.questions, "questions")
        given = ", ".join(f"a{place}" for place in range(len(program.guards)))
        lines.append(f"        if first_changed({questions}, [{given}]): return None")
    lines.append(f"        found = [{', '.join(results)}]")
    if overlaps.any:
        names.globals["first_overlap"] = overlaps.first
        lines.append("        if first_overlap(found) is not None: return None")
    lines.append("        return found")
    lines += [
        "    except (AttributeError, IndexError, KeyError, TypeError, ValueError):",
        "        return None",
        "",
    ]
    return "\n".join(lines), names.globals


def _apart_lines(program: Program) -> list[str]:
    """Tests that arguments are one tensor where they were.

    And nowhere else, if they have gradients: these are added up in another order then.
    """
    lines = []
    alike: dict[TensorGuard, list[int]] = {}
    for place, guard in enumerate(program.guards):
        if not isinstance(guard, TensorGuard):
            continue
        if guard.same_as >= 0:
            lines.append(f"if a{place} is not a{guard.same_as}: return None")
        elif guard.requires_grad:
            alike.setdefault(guard, []).append(place)
    for places in alike.values():
        if len(places) > 1:
            names = ", ".join(f"id(a{place})" for place in places)
            lines.append(f"if len({{{names}}}) < {len(places)}: return None")
    return lines


def _state_lines(
    program: Program,
    inputs: list[InputSpec],
    behaviours: tuple[Behaviour, ...],
    names: Namespace,
    late: frozenset[int] | None,
    exact: bool,
) -> list[str]:
    """Walk the module tree once: behaviour, training flags, parameters, buffers, tensors."""
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
    tensors = {spec.value: f"t{place}" for place, spec in enumerate(inputs)}
    bound: set[int] = set()
    for found in behaviours:
        strict = late is None
        lines += behaviour_lines(found, module(found.path), tensors, bound, names, strict)
    outside = [place for found in behaviours for place in found.outside]
    writer = PlaceLines(outside, tensors, bound, names)
    for there in outside:
        root = names.bind(there.root, "outside") if there.path is None else module(there.path)
        lines += writer.lines(there, root)
    settings: dict[str, list[str]] = {}
    for path, name, value in program.settings:
        test = setting_test(f"{module(path)}.{name}", value, names)
        settings.setdefault(module(path), []).append(test)
    lines.extend(f"if {' or '.join(words)}: return None" for words in settings.values())
    lines += ambient_lines(program, names) + hook_lines(names)
    places: dict[str, str] = {}
    tested: list[str] = []
    tests: list[str] = []
    for place, spec in enumerate(inputs):
        if spec.kind in ("param", "buffer"):
            lines.append(f"t{place} = {tensor(spec.fqn, spec.kind)}")
            places[spec.fqn] = f"t{place}"
        elif spec.value not in bound:
            continue
        if late is not None and place in late:
            continue
        meta = program.value_meta[spec.value]
        test = tensor_test(f"t{place}", meta.shape, meta.dtype, meta.device, names)
        test += f" and not t{place}.is_inference()"  # their dispatch keys tell `looks`
        if spec.kind in ("param", "buffer"):
            test += f" and {stride_test(f't{place}', meta.stride)} and type(t{place}) in plain"
        if spec.kind != "buffer" and not spec.requires_grad:
            test += f" and not t{place}.requires_grad"
        elif exact and spec.kind == "param":
            test += f" and t{place}.requires_grad"
        tested.append(f"t{place}")
        tests.append(f"    if not ({test}): return None")
    if tests:
        looks = names.bind(Looks(), "looks")
        lines += [f"if not {looks}.same({', '.join(tested)}):", *tests]
        lines.append(f"    {looks}.remember({', '.join(tested)})")
    for place, spec in enumerate(inputs):
        if spec.casts_kept is not None and not (late is not None and place in late):
            names.globals["casts_are_kept"] = casts_are_kept
            text = f"a{spec.position}" if spec.kind == "input" else f"t{place}"
            test = f"casts_are_kept({text}) is not {spec.casts_kept}"
            lines.append(f"if {text}.requires_grad and {test}: return None")
    kinds = {spec.fqn: spec.kind for spec in inputs}
    for group in program.shared:
        known = next((fqn for fqn in group if fqn in places), None)
        if known is None:
            continue
        for fqn in group:
            if fqn != known:
                lines.append(f"if {tensor(fqn, kinds[known])} is not {places[known]}: return None")
    return lines
