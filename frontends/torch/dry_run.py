"""The dry run: the user's step once on fake tensors, before any tracing.

It finds what the trace must know beforehand: tensors that the code closes over, what the output
looks like and which of it is differentiable. And it meets the user's mistakes where their own
traceback shows them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ...solver.errors import CaptureError, a_type
from . import export
from .communication import no_collectives
from .output import flatten_output, holds_tensors
from .outside.recorder import Recorder
from .sources import Source, make_fake, shown
from .step import Leaf, Plan, Step
from .watch import error_origin

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def dry_run(step: Step, mode: Any) -> Recorder:
    """Run `step` on fake tensors; adds constants to its sources and sets its plan.

    Returns
    -------
    Recorder
        What noted the code that ran.

    Raises
    ------
    CaptureError
        If the step needs values, nothing that it returns can be differentiated, or the loss that
        was given returns no scalar.
    """

    def adopt(tensor: torch.Tensor) -> torch.Tensor:
        fake = make_fake(mode, tensor, None, "a tensor that the step closes over")
        step.sources.append(Source("constant", tensor, fake.detach()))
        stand_ins[id(tensor)] = step.sources[-1].fake
        return step.sources[-1].fake

    fakes = tuple(source.fake for source in step.sources)
    stand_ins: dict[int, torch.Tensor] = {}
    recorder = Recorder()

    def meet(tensor: torch.Tensor) -> torch.Tensor:
        known = stand_ins.get(id(tensor))
        return adopt(tensor) if known is None else known

    try:
        with mode, no_collectives(), recorder.recording():
            out = step.run(fakes, meet)
    except CaptureError:
        raise
    except Exception as error:
        raise CaptureError(explain(error, step.names)) from error
    recorder.refuse_setting()
    step.reads = recorder.reads()
    leaves, spec = flatten_output(out)
    versions = [source.fake._version for source in step.sources]
    for source, version in zip(step.sources, versions, strict=True):
        if version and source.real.requires_grad:
            raise CaptureError(
                f"the step changes {label(source)} in place, which requires a gradient; do it "
                "outside the step"
            )
    step.plan = plan_outputs(leaves, step.sources, versions)
    if step.__dict__["root"].loss_fn is not None:
        need_scalar_loss(leaves)
    step.plan.spec = spec
    renew(step.sources, mode)
    return recorder


def renew(sources: Sequence[Source], mode: Any) -> None:
    """Give every source a fresh stand-in: the dry run has used, and may have changed, the old."""
    for source in sources:
        old = source.fake
        source.fake = make_fake(mode, old.detach(), None, source.kind)
        if source.kind != "constant" and source.real.requires_grad:
            source.fake.requires_grad_()


def plan_outputs(leaves: list[Any], sources: Sequence[Source], versions: Sequence[int]) -> Plan:
    """Decide how each leaf of the output is returned."""
    owner = {export.storage_key(s.fake): i for i, s in enumerate(sources)}
    plan = Plan()
    tensors = [t for t in leaves if isinstance(t, torch.Tensor) and not export.is_plain(t)]
    wanted = [t for t in tensors if t.requires_grad]
    losses = [t for t in wanted if t.dim() == 0 and t.is_floating_point()]
    if not wanted:
        raise CaptureError(
            "nothing that the step returns requires a gradient: train some parameter, and do not "
            "detach the loss"
        )
    chosen = losses if len(losses) == 1 else wanted
    known: dict[int, int] = {}
    shares: dict[int, int] = {}
    for index, leaf in enumerate(leaves):
        if not isinstance(leaf, torch.Tensor) or export.is_plain(leaf):
            if holds_gradient(leaf):
                raise CaptureError(
                    f"output {index} is a tensor from outside the step that requires a gradient"
                )
            if not isinstance(leaf, torch.Tensor) and holds_tensors(leaf):
                raise CaptureError(
                    f"output {index} is {a_type(type(leaf))} with tensors inside, which cannot "
                    "be taken apart; return its tensors, or switch it off (use_cache=False)"
                )
            plan.leaves.append(Leaf(literal=leaf))
            continue
        differentiable = leaf.requires_grad and any(leaf is t for t in chosen)
        entry = Leaf(
            differentiable=differentiable,
            refuse_backward=leaf.requires_grad and not differentiable,
            source=owner.get(export.storage_key(leaf), -1),
        )
        plan.leaves.append(entry)
        if entry.source >= 0:
            check_alias(index, leaf, entry, sources[entry.source], versions[entry.source])
            if leaf is sources[entry.source].fake:
                entry.differentiable = entry.refuse_backward = False
                continue
        if id(leaf) in known:
            entry.result = known[id(leaf)]
            continue
        if differentiable:
            other = shares.setdefault(export.storage_key(leaf), index)
            if other != index:
                raise CaptureError(
                    f"outputs {other} and {index} share memory and both carry gradients; return "
                    "one of them, or a clone"
                )
        entry.result = known[id(leaf)] = len(plan.returned)
        plan.returned.append(index)
    return plan


def need_scalar_loss(leaves: Sequence[Any]) -> None:
    """Refuse what a loss function returns if backward can start at none of it without a gradient.

    Several losses, or a loss among other results, are fine.
    """
    carrying = [t for t in leaves if isinstance(t, torch.Tensor) and t.requires_grad]
    if any(t.numel() == 1 for t in carrying):
        return
    shapes = ", ".join(str(list(t.shape)) for t in carrying)
    raise CaptureError(
        f"loss_fn returns no scalar (what carries gradients has shape {shapes}): reduce it with "
        "sum() or mean(), or give no loss_fn and call backward with a gradient"
    )


def holds_gradient(leaf: Any) -> bool:
    """Whether a leaf is a tensor from outside the step that would carry gradients."""
    return isinstance(leaf, torch.Tensor) and leaf.requires_grad


def label(source: Source) -> str:
    """What to call a source in a message."""
    return f"the {source.kind} {shown(source.name) or source.position}"


def check_alias(index: int, leaf: torch.Tensor, entry: Leaf, source: Source, version: int) -> None:
    """Refuse an output that is part of an input in a way that a program cannot give back."""
    what = label(source)
    if version:
        raise CaptureError(f"output {index} is {what}, which the step also changes; return a clone")
    if leaf is not source.fake and leaf.requires_grad:
        raise CaptureError(
            f"output {index} is a view of {what} that carries gradients; return a clone"
        )


def explain(error: BaseException, names: Mapping[int, str]) -> str:
    """One line about an exception of the user's step; `names` are the paths of its modules."""
    where = error_origin(error, names)
    start = f"{where}: " if where else ""
    if export.needs_values(error):
        return (
            f"{start}the step needs the value of a tensor here (a branch, a size or .item()); "
            "a captured step has one path: use torch.where, fixed sizes, or move it out of the step"
        )
    lines = str(error).strip().splitlines() or [""]
    return f"{start}the step fails on fake tensors ({type(error).__name__}: {lines[0]})"
