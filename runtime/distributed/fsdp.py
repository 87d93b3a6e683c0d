"""FSDP2 units inside a replayed module: their parameters are gathered around their uses.

`fully_shard` on a child puts hooks on the child's forward, which a replayed step does not call.
The generated code stops where such a unit's parameters are used first and last, and what its hooks
would have done is done here: by FSDP's own functions, so that prefetching, mixed meshes, gradient
accumulation and reduction are FSDP's. This is the one file that touches FSDP's inside.

The unit of the replayed module itself needs none of this: its hooks run as always.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ...frontends.torch.processes import is_sharded
from ...solver.errors import ReplayError, a_type
from ..generate.code import Sharding
from ..step.quiet import quiet
from .ranks import agree_on_plan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from ...frontends.torch.interface import InputSpec
    from ...frontends.torch.program import Program, ValueMeta
    from ..generate.code import StepCode

_CALLS = ("_pre_forward", "_post_forward", "_pre_backward")
PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


def refuse_sharded(model: nn.Module, words: str) -> None:
    """Refuse to plan another kind of call while only parts of a model are gathered at a time.

    Parameters
    ----------
    model
        The model.
    words
        What is new about the call.

    Raises
    ------
    ReplayError
        If children of it are sharded.
    """
    for path, module in model.named_modules():
        if path and is_sharded(module):
            raise ReplayError(
                f"{words}, and no plan can be made while children are sharded ({path}): plan such "
                "calls before fully_shard, in fit(..., shapes=[...]) or by prepare()"
            )


class Units:
    """The sharded units among the children of one replayed module.

    Attributes
    ----------
    sharding
        The same for the code generator.
    """

    def __init__(self, program: Program, model: nn.Module) -> None:
        paths = {path: m for path, m in model.named_modules() if is_sharded(m)}
        states = {path: _state(path, module) for path, module in paths.items()}
        first: dict[int, int] = {}
        self._units: list[_Unit] = []
        for path, state in states.items():
            if id(state) not in first:
                first[id(state)] = len(self._units)
                self._units.append(_Unit(path, paths[path], state))
        number = {path: first[id(state)] for path, state in states.items()}
        self.key = tuple((unit.path, id(unit.state)) for unit in self._units)

        def above(path: str) -> int:
            while path not in number:
                if not path:
                    return -1
                path = path.rpartition(".")[0]
            return number[path]

        inputs = [spec for spec in program.inputs if spec.kind != "tangent"]
        of_input: dict[int, int] = {}
        for place, spec in enumerate(inputs):
            if spec.kind == "param" and not spec.fqn.startswith("loss_fn."):
                unit = above(spec.fqn.rpartition(".")[0])
                if unit >= 0:
                    of_input[place] = unit
        outside = tuple(
            above(unit.path.rpartition(".")[0]) if unit.path else -1 for unit in self._units
        )
        self.sharding = Sharding(of_input, outside)
        self._members = [
            [
                (place, inputs[place], program.value_meta[inputs[place].value])
                for place, unit in of_input.items()
                if unit == index
            ]
            for index in range(len(self._units))
        ]
        sharded = {inputs[place].fqn for place in of_input}
        for leaf in program.outputs:
            given = leaf.input_position
            name = "" if given is None else program.inputs[given].fqn
            if name in sharded:
                raise ReplayError(
                    f"the step returns the parameter {name}, which fully_shard frees at the end of "
                    "the forward: return a clone, or shard the replayed module as one unit"
                )

    def __len__(self) -> int:
        return len(self._units)

    def agree(self, steps: Sequence[str]) -> None:
        """Check that all processes that share these units replay the same plan.

        Raises
        ------
        ReplayError
            If not: they would wait for each other for ever.
        """
        text = "\n".join([*(unit.path for unit in self._units), *steps])
        digest = hashlib.sha256(text.encode()).hexdigest()
        meshes = [group.mesh_info for unit in self._units for group in _groups(unit.state)]
        found: dict[int, Any] = {}
        for mesh in meshes:
            for name in ("shard_process_group", "replicate_process_group"):
                group = getattr(mesh, name, None)
                if group is not None:
                    found.setdefault(id(group), group)
        for group in found.values():
            agree_on_plan(digest, group)

    def gather(self, number: int, model: nn.Module, inputs: list[Any]) -> list[Any]:
        """Before the first use of a unit in forward: its parameters, put into `inputs` as well.

        Raises
        ------
        ReplayError
            If they do not look as they did at capture.
        """
        unit = self._units[number]
        unit.state._pre_forward(unit.module, (), {})
        found: list[Any] = []
        for place, spec, meta in self._members[number]:
            path, _, name = spec.fqn.rpartition(".")
            tensor = model.get_submodule(path)._parameters[name]
            _compare(spec, tensor, meta)
            inputs[place] = tensor
            found.append(tensor)
        return found

    def release(self, number: int) -> None:
        """After the last use of a unit in forward."""
        unit = self._units[number]
        unit.state._post_forward(unit.module, (), ())

    def gather_again(self, number: int) -> None:
        """Before the first use of a unit in backward."""
        self._units[number].state._pre_backward(None)

    def reduce(self, number: int) -> None:
        """When the gradients of a unit are complete and nothing reads its parameters any more."""
        for group in _groups(self._units[number].state):
            group.post_backward()


def run_forward(code: StepCode, inputs: list[Any], units: Units, model: nn.Module) -> Any:
    """Run a generated forward that stops at its units; what it returns."""
    running = code.forward(inputs)
    answer: list[Any] | None = None
    while True:
        try:
            with quiet():
                mark = running.send(answer)
        except StopIteration as end:
            return end.value
        answer = None
        if mark >= 0:
            answer = units.gather(mark, model, inputs)
        else:
            units.release(-1 - mark)


@dataclass(frozen=True)
class _Unit:
    path: str
    module: nn.Module
    state: Any


def _groups(state: Any) -> list[Any]:
    """Parameter groups of a unit; PyTorch before 2.12 knows one at most."""
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:
        group = getattr(state, "_fsdp_param_group", None)
        return [] if group is None else [group]
    return list(groups)


def _state(path: str, module: nn.Module) -> Any:
    """FSDP's state of a unit.

    Raises
    ------
    ReplayError
        If it does something that a replay cannot do.
    """
    holder: Any = module
    state = holder._get_fsdp_state()
    name = path or "the model"
    if not all(hasattr(state, call) for call in _CALLS) or not all(
        hasattr(group, "post_backward") for group in _groups(state)
    ):
        raise ReplayError(
            f"{name} is sharded by an FSDP that PyTorch {torch.__version__} has changed: shard the "
            "replayed module as one unit"
        )
    policy = state._mp_policy
    if policy.param_dtype is not None or policy.output_dtype is not None:
        raise ReplayError(
            f"{name} is sharded with a MixedPrecisionPolicy that casts (param_dtype or "
            "output_dtype), and the plan was made without those casts: convert the model before "
            "capture, or use autocast; reduce_dtype may be set"
        )
    return state


def _compare(spec: InputSpec, tensor: Any, meta: ValueMeta) -> None:
    """Refuse a gathered parameter that is not the captured one."""
    if type(tensor) not in PLAIN:
        raise ReplayError(
            f"parameter {spec.fqn} is {a_type(type(tensor))} when gathered (tensor parallelism, "
            "or a sharding of its own): a replayed step computes on plain tensors only"
        )
    found = (tuple(tensor.shape), tensor.dtype, tensor.device, tensor.stride())
    if found != (meta.shape, meta.dtype, meta.device, meta.stride):
        raise ReplayError(
            f"parameter {spec.fqn} is {tensor.dtype} {list(tensor.shape)} with strides "
            f"{list(tensor.stride())} on {tensor.device} when gathered; the plan was made for "
            f"{meta.dtype} {list(meta.shape)} with strides {list(meta.stride)} on {meta.device}: "
            "capture and solve again"
        )
    if tensor.requires_grad and not spec.requires_grad:
        raise ReplayError(
            f"parameter {spec.fqn} requires a gradient now and did not when captured: capture and "
            "solve again"
        )
