"""What a captured program says of its inputs, outputs and gradients, and of how it was captured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .interface import GradSpec, InputSpec, OutputSpec
from .outside.reads import LIBRARIES
from .sources import shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from .assemble import Wiring
    from .step import Step


def input_specs(step: Step, wiring: Wiring) -> tuple[tuple[InputSpec, ...], dict[int, int]]:
    """Inputs of the program, and value to index among them."""
    assert step.plan is not None
    specs: list[InputSpec] = []
    for index, source in enumerate(step.sources):
        if index in wiring.sources:
            specs.append(
                InputSpec(
                    source.kind,
                    wiring.sources[index],
                    fqn=shown(source.name),
                    position=source.position,
                    tensor=source.real if source.kind == "constant" else None,
                    requires_grad=source.real.requires_grad,
                    casts_kept=step.keeps[index],
                )
            )
    specs += [InputSpec("constant", value, tensor=real) for value, real in wiring.constants]
    specs += [
        InputSpec("tangent", value, position=step.plan.returned[index])
        for index, value in wiring.tangents.items()
    ]
    return tuple(specs), {spec.value: i for i, spec in enumerate(specs)}


def output_specs(step: Step, wiring: Wiring, position: dict[int, int]) -> tuple[OutputSpec, ...]:
    """The leaves of the step's output."""
    assert step.plan is not None
    leaves = []
    for leaf in step.plan.leaves:
        source = wiring.sources.get(leaf.source)
        value = wiring.outputs.get(leaf.result) if leaf.result >= 0 else source
        leaves.append(
            OutputSpec(
                value,
                leaf.literal,
                leaf.differentiable and leaf.result in wiring.tangents,
                None if source is None else position[source],
                leaf.refuse_backward,
            )
        )
    return tuple(leaves)


def grad_specs(
    inputs: tuple[InputSpec, ...], wiring: Wiring, parts: Sequence[int]
) -> tuple[GradSpec, ...]:
    """One per parameter, and per input that requires a gradient; `parts` is by source."""
    by_value = {wiring.sources[i]: (v, parts[i]) for i, v in wiring.gradients.items()}
    return tuple(
        GradSpec(index, *by_value.get(spec.value, (None,)))
        for index, spec in enumerate(inputs)
        if spec.kind == "param" or (spec.kind == "input" and spec.requires_grad)
    )


def shared_names(root: torch.nn.Module) -> tuple[tuple[str, ...], ...]:
    """Groups of names that are one parameter or buffer."""
    groups: dict[int, list[str]] = {}
    for name, p in root.named_parameters(remove_duplicate=False):
        groups.setdefault(id(p), []).append(shown(name))
    for name, b in root.named_buffers(remove_duplicate=False):
        groups.setdefault(id(b), []).append(shown(name))
    return tuple(tuple(g) for g in groups.values() if len(g) > 1)


def settings_of(
    root: torch.nn.Module, names: frozenset[str]
) -> tuple[tuple[str, str, int | float | str | None], ...]:
    """Attributes of the modules that are numbers, flags, words or nothing.

    Public ones, and private ones and those of the user's classes that are among the `names` that
    the step looks up.
    """
    kinds = (bool, int, float, str, type(None))
    found = []
    for path, module in root.named_modules():
        if module is root:
            continue
        own = {n: v for n, v in module.__dict__.items() if n[0] != "_" or n in names}
        for kind in type(module).__mro__:
            if kind.__module__.split(".")[0] not in LIBRARIES:
                own = {n: v for n, v in vars(kind).items() if n in names} | own
        own.pop("training", None)
        found += [(shown(path), n, v) for n, v in own.items() if type(v) in kinds]
    return tuple(found)
