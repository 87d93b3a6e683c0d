"""The one file that touches PyTorch's private interfaces: fake tensors and the joint graph export.

The step is traced by running it, autograd included, under AOTAutograd's tracer on fake tensors:
`aot_export_joint_with_descriptors` without decompositions. Nothing is computed and no activation is
allocated. User code that asks for values may be told that it is compiled
(`torch.compiler.is_compiling()`): model libraries then take a path that fits all masks.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import fx

from ...solver.errors import CaptureError
from .autocasts import casts_kept
from .checkpoints import checkpoints_off
from .cumulative import counters_unread
from .kernels import checks_kept, eager_kernels
from .layouts import true_results

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import nn

_ASKS_FOR_FAKES = "transformers.utils.import_utils"
OLDEST, NEWEST = (2, 11), (2, 14)


@dataclass(frozen=True, slots=True)
class Slot:
    """What a placeholder or a result of the joint graph stands for.

    `index` counts the step's inputs for "input", "mutation" and "gradient", and its outputs for
    "tangent" and "output". A "token" only keeps effects in order.
    """

    role: Literal["input", "tangent", "mutation", "output", "gradient", "token"]
    index: int


@dataclass(frozen=True, slots=True)
class Joint:
    """A joint graph; `arguments` and `results` say what its placeholders and results are."""

    module: fx.GraphModule
    arguments: tuple[Slot, ...]
    results: tuple[Slot | None, ...]


def check_version() -> None:
    """Refuse a PyTorch whose private interfaces were never tried.

    Raises
    ------
    CaptureError
        If the version is outside 2.11 to 2.14, or lacks what is needed.
    """
    text = torch.__version__.split("+")[0]
    version = tuple(int(part) for part in text.split(".")[:2])
    if not OLDEST <= version <= NEWEST:
        raise CaptureError(
            f"PyTorch {text} is not supported: capture needs {OLDEST[0]}.{OLDEST[1]} "
            f"to {NEWEST[0]}.{NEWEST[1]}"
        )
    try:
        from torch._functorch.aot_autograd import aot_export_joint_with_descriptors  # noqa: F401
        from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: F401
    except ImportError as error:
        raise CaptureError(f"PyTorch {text} lacks an interface of capture: {error}") from error


def new_fake_mode() -> Any:
    """A fake-tensor mode with static shapes: data-dependent sizes and values raise."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode(allow_non_fake_inputs=False)


def effect(node: fx.Node) -> tuple[Any, tuple[Any, ...]] | None:
    """Operator and arguments of a node that threads an effect token, else None."""
    if getattr(node.target, "__name__", "") != "with_effects":
        return None
    return node.args[1], tuple(node.args[2:])


@contextlib.contextmanager
def uncached(mode: Any) -> Iterator[None]:
    """Let a fake mode compute every result: its cache forgets which outputs share memory."""
    before = getattr(mode, "cache_enabled", False)
    mode.cache_enabled = False
    try:
        yield
    finally:
        mode.cache_enabled = before


def is_fake(tensor: torch.Tensor) -> bool:
    """Whether a tensor has no data because it is fake."""
    from torch._subclasses.fake_tensor import FakeTensor

    return isinstance(tensor, FakeTensor)


def count_change(tensor: torch.Tensor) -> None:
    """Count one change more of a fake tensor, for operators that do not."""
    if is_fake(tensor):
        torch.autograd.graph.increment_version(tensor)


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is an ordinary one with data: not fake, functional or another subclass."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
        return False
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    return not (wrapped or torch._is_functional_tensor(tensor))


def storage_key(tensor: torch.Tensor) -> int:
    """Identity of the storage: equal for two tensors exactly if they share memory."""
    return int(tensor.untyped_storage()._cdata)


def needs_values(error: BaseException) -> bool:
    """Whether `error` says that a fake tensor was asked for a value or a size it cannot know."""
    from torch._subclasses.fake_tensor import (
        DataDependentOutputException,
        DynamicOutputShapeException,
    )

    return isinstance(error, (DataDependentOutputException, DynamicOutputShapeException))


def set_origin(origin: str) -> None:
    """Mark what is traced from now on as coming from `origin`."""
    from torch.fx import traceback

    traceback.current_meta["stack_trace"] = origin


def origin_of(node: fx.Node) -> str:
    """The origin of a node; for a backward node, that of the forward op it differentiates."""
    return str(node.meta.get("stack_trace") or "")


@contextlib.contextmanager
def real_values() -> Iterator[None]:
    """Compute on real tensors in the middle of a trace."""
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes(), torch.no_grad():
        yield


def transforming() -> bool:
    """Whether a function transform such as vmap runs."""
    return torch._C._functorch.peek_interpreter_stack() is not None


@contextlib.contextmanager
def compiling(compiled: bool) -> Iterator[None]:
    """Tell user code whether it is being compiled, and keep PyTorch from warning about it.

    Not that it is being exported: libraries then choose other operators than in training. Nor, if
    not compiled, that tensors are fake: in the dry run they are, in the trace they are not.
    """
    before = torch.compiler._is_compiling_flag
    library: Any = sys.modules.get(_ASKS_FOR_FAKES)
    asked = getattr(library, "is_fake_tensor", None)
    loggers = [logging.getLogger(name) for name in ("torch._functorch", "torch._subclasses")]
    levels = [logger.level for logger in loggers]
    try:
        torch.compiler._is_compiling_flag = compiled
        if asked is not None and not compiled:
            library.is_fake_tensor = lambda _tensor: False
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)  # what fails is raised, and reported in one line
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.compiler._is_compiling_flag = before
        if asked is not None:
            library.is_fake_tensor = asked
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextlib.contextmanager
def tracing(
    *, compiled: bool, state: Callable[[], dict[str, tuple[torch.Tensor, int]]]
) -> Iterator[None]:
    """All that holds while a step is traced.

    `state` is asked for the tensors that the step might change, as `checkpoints_off` needs them.
    """
    with (
        plain_autocast(),
        compiling(compiled),
        checkpoints_off(state),
        casts_kept(),
        counters_unread(),
        eager_kernels(),
        checks_kept(),
        true_results(),
    ):
        yield


@contextlib.contextmanager
def plain_autocast() -> Iterator[None]:
    """Switch ambient autocasts off: the step turns them on for its forward, as training does."""
    with torch._C._DisableAutocast():
        yield


@contextlib.contextmanager
def autocast_cache(enabled: bool) -> Iterator[None]:
    """Let autocast keep the casts of weights or not, as the plain step does; tracers never do.

    A weight that is used twice is cast once, and its gradients are added up in the narrow type.
    """
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(enabled)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


def export_joint(step: nn.Module, inputs: Sequence[torch.Tensor]) -> Joint:
    """Trace forward and backward of `step(*inputs)`.

    Parameters
    ----------
    step
        A module without parameters of its own that returns a list of tensors.
    inputs
        Fake tensors of one fake mode; those that require gradients are differentiated.
    """
    from torch._functorch import aot_autograd
    from torch._functorch._aot_autograd import descriptors
    from torch.fx import traceback

    def slot(description: Any) -> Slot | None:
        if description is None:
            return None
        kind = type(description).__name__
        if kind == "PlainAOTInput":
            return Slot("input", description.idx)
        if kind == "PlainAOTOutput":
            return Slot("output", description.idx)
        if "Token" in kind:
            return Slot("token", 0)
        inner: Any = None
        if kind == "TangentAOTInput":
            inner, role = description.output, "tangent"
        elif kind == "InputMutationAOTOutput":
            inner, role = description.mutated_input, "mutation"
        elif kind == "GradAOTOutput":
            inner, role = description.grad_of, "gradient"
        if not isinstance(inner, (descriptors.PlainAOTInput, descriptors.PlainAOTOutput)):
            raise CaptureError(f"the joint graph has a result that lowtide cannot place: {kind}")
        return Slot(role, inner.idx)  # type: ignore[arg-type]

    saved = dict(traceback.current_meta)
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(traceback.preserve_node_meta())
            joint = aot_autograd.aot_export_joint_with_descriptors(stack, step, tuple(inputs))
    finally:
        traceback.current_meta.clear()
        traceback.current_meta.update(saved)
    module = joint.graph_module
    arguments = [slot(n.meta.get("desc")) for n in module.graph.find_nodes(op="placeholder")]
    output = module.graph.output_node()
    results = [slot(description) for description in output.meta["desc"]]
    if any(argument is None for argument in arguments) or len(results) != len(output.args[0]):  # type: ignore[arg-type]
        raise CaptureError("the joint graph does not describe all its inputs and outputs")
    return Joint(module, tuple(a for a in arguments if a is not None), tuple(results))
