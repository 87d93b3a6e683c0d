"""What goes into a captured program, what comes out, and what arguments must look like."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch

InputKind = Literal["param", "buffer", "input", "constant", "tangent"]


@dataclass(frozen=True, slots=True)
class InputSpec:
    """Where an input value of the program comes from.

    Attributes
    ----------
    kind, value
        Its kind and value index.
    fqn
        For parameters and buffers: the name to resolve at call time, relative to the user's model;
        names of a loss module start with `loss_fn.`.
    position
        For an input: its place in `tree_flatten((args, kwargs))`; for a tangent: the index of the
        forward output that it belongs to; otherwise -1.
    tensor
        For a constant: the tensor itself, by reference.
    requires_grad
        Whether it required a gradient at capture.
    casts_kept
        Whether autocast kept its narrow form for its further uses: that of a leaf. None if this
        makes no difference.
    """

    kind: InputKind
    value: int
    fqn: str = ""
    position: int = -1
    tensor: torch.Tensor | None = None
    requires_grad: bool = False
    casts_kept: bool | None = None


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """One leaf of the flattened forward output.

    Attributes
    ----------
    value, literal
        The value, or the Python object for a leaf that is not a tensor (`value` None).
    differentiable
        True if a gradient can flow back through it; it then has a tangent input.
    input_position
        Index into `Program.inputs` of the input, parameter or buffer that it is or views.
    refuse_backward
        True if the plain run lets gradients flow through it and the program does not (it
        differentiates the loss only): a backward through it must raise.
    """

    value: int | None
    literal: Any = None
    differentiable: bool = False
    input_position: int | None = None
    refuse_backward: bool = False


@dataclass(frozen=True, slots=True)
class GradSpec:
    """The gradient of one parameter or input.

    Attributes
    ----------
    input
        Index into `Program.inputs`.
    value
        The value that holds the gradient; None if there is none.
    parts
        How many gradients autograd added up to it, one by one.
    """

    input: int
    value: int | None
    parts: int = 1


@dataclass(frozen=True, slots=True)
class TensorGuard:
    """What a tensor argument must look like for the program to be valid.

    `same_as` is the position of the argument that it is, if it was given before; else -1.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    stride: tuple[int, ...]
    requires_grad: bool
    same_as: int = -1


@dataclass(frozen=True, slots=True)
class LiteralGuard:
    """The value that an argument which is not a tensor must be equal to.

    For an array the `Numbers` that it has to hold.
    """

    value: Any
