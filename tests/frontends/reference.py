"""A plain interpreter of captured programs, and the comparison with the eager step.

It runs the ops in base order and keeps every value, so it says whether a program is right, not
whether a schedule is. Views are made when first read, random ops draw in program order.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from lowtide.frontends.torch.program import Kind, ValueRef

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from lowtide.frontends.torch.captured import Captured
    from lowtide.frontends.torch.program import Call, Program


@dataclass
class Outcome:
    """What one step leaves behind."""

    outputs: list[Any]
    gradients: dict[str, torch.Tensor | None]
    buffers: dict[str, torch.Tensor]
    inputs: list[torch.Tensor]
    generator: torch.Tensor


class Machine:
    """Values of a program as they are computed; `alias_errors` lists wrong predictions."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.values: dict[int, torch.Tensor] = {}
        self.alias_errors: list[str] = []

    def get(self, value: int) -> torch.Tensor:
        """A value, made from its source if it is a view."""
        if value not in self.values:
            self.call(self.program.views[value])
        return self.values[value]

    def call(self, call: Call) -> None:
        """Run one call and store what it makes."""

        def real(argument: Any) -> Any:
            if isinstance(argument, ValueRef):
                return self.get(argument.index)
            if isinstance(argument, (tuple, list)):
                return type(argument)(real(item) for item in argument)
            if isinstance(argument, dict):
                return {key: real(item) for key, item in argument.items()}
            return argument

        out = call.target(*real(call.args), **real(call.kwargs))
        results = out if call.unpack else [out] if call.outputs else []
        for value, result in zip(call.outputs, results, strict=True):
            if value is not None:
                self.values[value] = result
                self.look(value, result)

    def look(self, value: int, tensor: torch.Tensor) -> None:
        """Compare what was promised of a value with what it is."""
        meta = self.program.value_meta[value]
        same = (tuple(tensor.shape), tensor.dtype) == (meta.shape, meta.dtype)
        strides = zip(tensor.shape, tensor.stride(), meta.stride, strict=True)
        if not same or any(a != b for n, a, b in strides if n > 1 and 0 not in meta.shape):
            self.alias_errors.append(f"value {value}: {meta} but {tensor.shape} {tensor.stride()}")

    def check_storages(self) -> None:
        """Compare the predicted partition into storages with the real one."""
        owner: dict[int, int] = {}
        for value, tensor in self.values.items():
            if tensor.numel() == 0:
                continue
            storage = tensor.untyped_storage()._cdata
            predicted = self.program.value_tensor[value]
            if owner.setdefault(storage, predicted) != predicted:
                self.alias_errors.append(f"value {value} shares memory with another tensor")


def run_program(captured: Captured, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """One step by the program; gradients go to `.grad`, buffers and inputs are written back."""
    program = captured.program
    flat = pytree.tree_flatten((args, kwargs))[0]
    root = torch.nn.Module()
    root.model = captured.model
    named = dict(captured.model.named_parameters()) | dict(captured.model.named_buffers())
    if isinstance(captured.loss_fn, torch.nn.Module):
        for name, tensor in (
            *captured.loss_fn.named_parameters(),
            *captured.loss_fn.named_buffers(),
        ):
            named[f"loss_fn.{name}"] = tensor
    machine = Machine(program)
    owners: list[torch.Tensor | None] = []
    for spec in program.inputs:
        owner = spec.tensor
        if spec.kind in ("param", "buffer"):
            owner = named[spec.fqn]
        elif spec.kind == "input":
            owner = flat[spec.position]
        owners.append(owner)
        if owner is not None:
            machine.values[spec.value] = owner.detach()
    with torch.no_grad():
        for op in program.ops:
            if op.kind is Kind.CALL:
                assert op.call is not None
                machine.call(op.call)
            elif op.kind is Kind.RNG_STATE:
                machine.values[op.writes[0]] = torch.get_rng_state()
            elif op.kind is Kind.SNAPSHOT:
                machine.values[op.writes[0]] = machine.get(op.reads[0]).clone()
            elif op.kind is Kind.WRITE_BACK:
                assert op.target_input is not None
                target = owners[op.target_input]
                assert target is not None
                target.copy_(machine.get(op.reads[0]))
            else:
                for spec in program.inputs:
                    if spec.kind == "tangent":
                        meta = program.value_meta[spec.value]
                        ones = torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype)
                        machine.values[spec.value] = ones.fill_(1.0)
        machine.check_storages()
        assert not machine.alias_errors, machine.alias_errors[:5]
        outputs = [o.literal if o.value is None else machine.get(o.value) for o in program.outputs]
        outputs = [o.clone() if isinstance(o, torch.Tensor) else o for o in outputs]
        for gradient in program.gradients:
            if gradient.value is None:
                continue
            owner = owners[gradient.input]
            value = machine.get(gradient.value)
            assert owner is not None
            if owner.is_leaf:
                owner.grad = value if owner.grad is None else owner.grad + value
            else:
                with torch.enable_grad():
                    owner.backward(value)  # type: ignore[no-untyped-call]
    return outputs


def run_eager(captured: Captured, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """One step by plain PyTorch, tangents of one into every differentiable output."""
    from lowtide.frontends.torch.output import flatten_output

    leaves, _ = flatten_output(captured.call(args, kwargs))
    roots = [
        leaf
        for leaf, spec in zip(leaves, captured.program.outputs, strict=True)
        if spec.differentiable
    ]
    torch.autograd.backward(roots, [torch.ones_like(root) for root in roots])
    return [leaf.detach() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]


def outcome(
    captured: Captured,
    batch: Any,
    step: Callable[[Captured, tuple[Any, ...], dict[str, Any]], list[Any]],
    seed: int,
) -> Outcome:
    """Run one step with a seed and collect what it leaves."""
    from lowtide.frontends.torch.batches import split_batch

    _, args, kwargs = split_batch(batch)
    torch.manual_seed(seed)
    random.seed(seed)
    outputs = step(captured, args, kwargs)
    model: nn.Module = captured.model
    tensors = [leaf for leaf in pytree.tree_leaves(batch) if isinstance(leaf, torch.Tensor)]
    gradients = {name: _copy(p.grad) for name, p in model.named_parameters()}
    gradients |= {f"input.{i}": _copy(t.grad) for i, t in enumerate(tensors) if t.is_leaf}
    return Outcome(
        outputs,
        gradients,
        {name: b.detach().clone() for name, b in model.named_buffers()},
        [t.detach().clone() for t in tensors],
        torch.get_rng_state(),
    )


def _copy(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """A clone that keeps the strides; None stays None."""
    if tensor is None:
        return None
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype).copy_(tensor)


def differences(a: Outcome, b: Outcome) -> list[str]:
    """What differs between two outcomes, bit by bit; strides of gradients count."""
    found = []
    pairs: list[tuple[str, Any, Any]] = [
        *((f"output {i}", x, y) for i, (x, y) in enumerate(zip(a.outputs, b.outputs, strict=True))),
        *((f"gradient {n}", a.gradients[n], b.gradients[n]) for n in a.gradients),
        *((f"buffer {n}", a.buffers[n], b.buffers[n]) for n in a.buffers),
        *((f"input {i}", x, y) for i, (x, y) in enumerate(zip(a.inputs, b.inputs, strict=True))),
        ("generator", a.generator, b.generator),
    ]
    for name, x, y in pairs:
        if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor):
            if x.shape != y.shape or x.dtype != y.dtype:
                found.append(f"{name}: {x.dtype}{list(x.shape)} and {y.dtype}{list(y.shape)}")
            elif not torch.equal(torch.nan_to_num(x), torch.nan_to_num(y)):
                found.append(f"{name}: {(x.double() - y.double()).abs().max().item():.3g} apart")
            elif name.startswith("gradient") and x.stride() != y.stride():
                found.append(f"{name}: strides {x.stride()} and {y.stride()}")
        elif isinstance(x, torch.Tensor) or isinstance(y, torch.Tensor) or x != y:
            found.append(f"{name}: {type(x).__name__} and {type(y).__name__}")
    return found


def compare(model: nn.Module, batch: Callable[[], Any], captured: Captured) -> list[str]:
    """Differences between the eager step and the program, from the same state and seed."""
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    plain = outcome(captured, batch(), run_eager, 5)
    model.zero_grad()
    for leaf in pytree.tree_leaves(batch()):
        if isinstance(leaf, torch.Tensor):
            leaf.grad = None
    with torch.no_grad():
        model.load_state_dict(state)
    return differences(plain, outcome(captured, batch(), run_program, 5))


def fresh(batch: Any) -> Any:
    """The same batch in new tensors; tensors that were the same object stay so."""
    known: dict[int, torch.Tensor] = {}

    def copy(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        new = leaf.detach().clone().requires_grad_(leaf.requires_grad)
        return known.setdefault(id(leaf), new)

    return pytree.tree_map(copy, batch)
