"""Bytes of optimizer state, before there is any: what a step of the optimizer would leave.

The optimizer steps once on stand-ins of the parameters: on the `meta` device, where nothing is
computed or allocated, or, if it looks at values, on tensors of their sizes on the CPU, one kind of
parameter at a time. What it computes with in its own step (temporaries of `foreach` and `fused`
implementations) is outside of forward and backward, and not counted.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from ...solver.errors import InputError, a_type
from .assemble import allocated

if TYPE_CHECKING:
    from .program import Program

OptimizerLike: TypeAlias = (
    str
    | torch.optim.Optimizer
    | Callable[..., torch.optim.Optimizer]
    | Sequence[torch.optim.Optimizer]
)


def _kinds() -> dict[str, type[torch.optim.Optimizer]]:
    """The optimizers of the installed PyTorch by their names in lower case."""
    found = {name.lower(): getattr(torch.optim, name) for name in torch.optim.__all__}
    base = torch.optim.Optimizer
    return {
        name: kind
        for name, kind in sorted(found.items())
        if inspect.isclass(kind) and issubclass(kind, base) and kind is not base
    }


# Known, and refused with a reason of their own.
NOT_FORETOLD = ("lbfgs", "sparseadam")
NAMED: dict[str, Callable[..., torch.optim.Optimizer]] = {
    name: kind for name, kind in _kinds().items() if name not in NOT_FORETOLD
}
NAMED["sgd-momentum"] = partial(torch.optim.SGD, momentum=0.9)
_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")


def state_bytes(
    optimizer: OptimizerLike,
    program: Program,
    parameters: dict[str, torch.nn.Parameter],
    device: torch.device,
) -> int:
    """Bytes of state on `device` once the optimizer has stepped.

    Parameters
    ----------
    optimizer
        A name of `NAMED` (those of `torch.optim` in lower case), an optimizer, several of them, or
        what makes one of parameters: a class, or a `functools.partial` of it. Names and makers are
        taken to train all parameters.
    program
        The step: parameters without a gradient in it get no state (what there is counts).
    parameters
        By name, as the program knows them.
    device
        Where the step runs; state elsewhere is not counted.

    Raises
    ------
    InputError
        If there is no such optimizer, or its state cannot be foretold.
    """
    trained = [
        parameters[spec.fqn]
        for spec in (program.inputs[g.input] for g in program.gradients if g.value is not None)
        if spec.kind == "param" and spec.fqn in parameters
    ]
    found = _optimizers(optimizer, list({id(p): p for p in parameters.values()}.values()))
    held = {id(p) for one in found for group in one.param_groups for p in group["params"]}
    if trained and not held & {id(p) for p in trained}:
        raise InputError(
            "the optimizer trains no parameter of this model: make it from model.parameters()"
        )
    gets = {id(p) for p in trained}
    return sum(_bytes_of(one, gets, device) for one in found)


def _optimizers(
    optimizer: OptimizerLike, parameters: list[torch.nn.Parameter]
) -> list[torch.optim.Optimizer]:
    """The optimizers that are meant."""
    if isinstance(optimizer, torch.optim.Optimizer):
        return [optimizer]
    if isinstance(optimizer, (list, tuple)):
        for one in optimizer:
            if not isinstance(one, torch.optim.Optimizer):
                raise InputError(f"optimizers holds {a_type(type(one))}, not an optimizer")
        return list(optimizer)
    if isinstance(optimizer, str):
        name = optimizer.strip().lower()
        known: dict[str, Callable[..., torch.optim.Optimizer]] = {**_kinds(), **NAMED}
        if name not in known:
            raise InputError(
                f"unknown optimizer {optimizer!r}: use one of {', '.join(NAMED)}, or give the "
                "optimizer itself from Python"
            )
        optimizer = known[name]
    if not callable(optimizer):
        raise InputError(f"optimizer is {a_type(type(optimizer))}: give an optimizer or a name")
    if not parameters:
        return []
    _refuse(optimizer)
    try:
        # Settings are checked against the parameters; meta ones look like those of the step.
        made = optimizer([_stand_in(p, torch.device("meta")) for p in parameters])
    except Exception as error:
        # Some (Muon) are for a part of the parameters, matrices, and want another for the rest.
        raise InputError(
            f"{_name(optimizer)} cannot be made of all parameters alone: {error}; give the "
            "optimizer itself from Python, or a list if several train the model"
        ) from None
    if not isinstance(made, torch.optim.Optimizer):
        raise InputError(f"{_name(optimizer)} makes {a_type(type(made))}, not an optimizer")
    # The same with the parameters themselves, so that one way of counting serves all.
    real = dict(zip(map(id, _parameters(made)), parameters, strict=True))
    for group in made.param_groups:
        group["params"] = [real[id(p)] for p in group["params"]]
    made.state = defaultdict(dict, {real[id(p)]: state for p, state in made.state.items()})
    return [made]


def _parameters(optimizer: torch.optim.Optimizer) -> Iterable[torch.Tensor]:
    return (p for group in optimizer.param_groups for p in group["params"])


def _bytes_of(optimizer: torch.optim.Optimizer, gets: set[int], device: torch.device) -> int:
    """State of one optimizer; `gets` are the parameters that have a gradient."""
    _refuse(optimizer)
    total = 0
    for group in optimizer.param_groups:
        on_device = bool(group.get("fused") or group.get("capturable"))
        counts: dict[tuple[Any, ...], int] = {}
        example: dict[tuple[Any, ...], torch.Tensor] = {}
        for p in group["params"]:
            if id(p) not in gets:
                total += _sum(_tensors(optimizer.state.get(p, {})), device, p.device, False)
                continue
            key = (tuple(p.shape), p.stride(), p.dtype)
            counts[key] = counts.get(key, 0) + 1
            example[key] = p
        for key, count in counts.items():
            state = _stepped(optimizer, group, example[key])
            total += count * _sum(state, device, device, on_device)
    return total


def _stepped(
    optimizer: torch.optim.Optimizer, group: dict[str, Any], like: torch.Tensor
) -> list[torch.Tensor]:
    """Tensors of state that one step leaves for a parameter that looks like `like`."""
    failure: Exception | None = None
    for where in ("meta", "cpu"):
        stand_in = _stand_in(like, torch.device(where))
        stand_in.grad = torch.ones_like(stand_in)
        twin = object.__new__(type(optimizer))
        twin.__dict__.update(optimizer.__dict__)
        twin.__dict__.pop("step", None)  # a learning-rate scheduler has wrapped it
        for hooks in _HOOKS:
            twin.__dict__[hooks] = OrderedDict()
        settings = {"fused": False, "foreach": False, "capturable": False}
        settings = {k: v for k, v in settings.items() if k in group}
        twin.state = defaultdict(dict)
        if like in optimizer.state:  # some make it when they are made
            twin.state[stand_in] = _elsewhere(optimizer.state[like], torch.device(where))
        twin.param_groups = [{**group, **settings, "params": [stand_in]}]
        try:
            with torch.random.fork_rng(devices=[]):
                twin.step()
        except Exception as error:
            failure = error
            continue
        return _tensors(twin.state.get(stand_in, {}))
    raise InputError(
        f"what {type(optimizer).__name__} keeps cannot be foretold ({failure}): give its bytes as "
        "extra_resident_bytes"
    )


def _elsewhere(state: Any, where: torch.device) -> Any:
    """State on another device, all zeros; scalars, which count steps, as they are."""
    if isinstance(state, torch.Tensor):
        if state.dim() == 0 and state.device.type != "meta":
            return state.detach().to("cpu", copy=True)
        return torch.zeros_like(state, device=where)
    if isinstance(state, dict):
        return {key: _elsewhere(value, where) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)(_elsewhere(value, where) for value in state)
    return state


def _tensors(state: Any) -> list[torch.Tensor]:
    """All tensors in a state, however nested."""
    if isinstance(state, torch.Tensor):
        return [state]
    if isinstance(state, dict):
        state = list(state.values())
    if isinstance(state, (list, tuple)):
        return [tensor for item in state for tensor in _tensors(item)]
    return []


def _sum(
    tensors: list[torch.Tensor], device: torch.device, home: torch.device, scalars: bool
) -> int:
    """Bytes on `device` of state of a parameter that lives on `home`.

    Scalars such as a step count are on the CPU, unless the optimizer wants them beside the
    parameter (`scalars`).
    """
    total = 0
    for tensor in tensors:
        beside = tensor.dim() > 0 or scalars or tensor.device.type == "meta"
        total += allocated(
            tensor.untyped_storage().nbytes(), home if beside else tensor.device, device
        )
    return total


def _stand_in(like: torch.Tensor, where: torch.device) -> torch.nn.Parameter:
    data = torch.empty_strided(tuple(like.shape), like.stride(), dtype=like.dtype, device=where)
    if where.type != "meta":
        data.fill_(0.5)
    return torch.nn.Parameter(data, requires_grad=like.requires_grad)


def _refuse(optimizer: Any) -> None:
    """Optimizers whose state is not per parameter."""
    kind = optimizer.func if isinstance(optimizer, partial) else optimizer
    kind = kind if inspect.isclass(kind) else type(kind)
    if issubclass(kind, torch.optim.LBFGS):
        raise InputError(
            "LBFGS runs the step several times and keeps a history of flat gradients "
            "(2 * history_size + 3 vectors of all parameters): give extra_resident_bytes"
        )
    if issubclass(kind, torch.optim.SparseAdam):
        raise InputError("SparseAdam needs sparse gradients, which a captured step does not have")


def _name(made_by: Any) -> str:
    target = made_by.func if isinstance(made_by, partial) else made_by
    return getattr(target, "__name__", type(target).__name__)
