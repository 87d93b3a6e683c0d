"""What cannot be captured exactly is refused, by name and with the user's line."""

from __future__ import annotations

import logging
import random
from collections import deque
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from lowtide.frontends.torch import export
from lowtide.frontends.torch.capture import capture
from lowtide.solver.errors import CaptureError, InputError

from .models import Lambda, rows

if TYPE_CHECKING:
    from collections.abc import Callable


def branch(self: Any, x: torch.Tensor) -> Any:
    """A branch on a value."""
    if x.mean() > 0:
        return self.lin(x).sum()
    return -self.lin(x).sum()


def counter(self: Any, x: torch.Tensor) -> Any:
    """A Python counter that the result depends on."""
    self.calls = getattr(self, "calls", 0) + 1
    return self.lin(x).sum() * self.calls


def keeps(self: Any, x: torch.Tensor) -> Any:
    """An activation kept on the module."""
    self.last = self.lin(x)
    return self.last.sum()


def caches(self: Any, x: torch.Tensor) -> Any:
    """A mask that is made when there is none of the size."""
    if getattr(self, "mask", None) is None or len(self.mask) != len(x):
        self.mask = torch.ones(len(x), 1).tril()
    return (self.lin(x) * self.mask).sum()


def seeds(self: Any, x: torch.Tensor) -> Any:
    """A forward that sets the seed."""
    torch.manual_seed(7)
    return F.dropout(self.lin(x)).sum()


def hooked(self: Any, x: torch.Tensor) -> Any:
    """A hook on an activation."""
    h: torch.Tensor = self.lin(x)
    h.register_hook(lambda grad: grad * 2)  # type: ignore[no-untyped-call]
    return h.sum()


def moves_weight(self: Any, x: torch.Tensor) -> Any:
    """A parameter changed in place."""
    with torch.no_grad():
        self.weight.mul_(0.9)
    return (x @ self.weight).sum()


def switches_on(self: Any, x: torch.Tensor) -> Any:
    """An input that is made to require a gradient inside."""
    return self.lin(x.requires_grad_()).sum()


def twins(self: Any, x: torch.Tensor) -> Any:
    """Two differentiable outputs in one storage."""
    h = self.lin(x)
    return h, h.t()


def outgrows(self: Any, x: torch.Tensor) -> Any:
    """A buffer that changes its shape."""
    self.one = torch.cat([self.one, self.one])
    return self.lin(x).sum()


def registers(self: Any, x: torch.Tensor) -> Any:
    """A buffer that is made in the forward."""
    self.register_buffer("made", torch.ones(4))
    return self.lin(x).sum()


def writes_into_a_part(self: Any, x: torch.Tensor) -> Any:
    """A write into columns that are no view of the whole."""
    left, right = self.lin(x).unsafe_chunk(2, 1)
    left += right
    return left.sigmoid().sum()


def narrow_inside(self: Any, x: torch.Tensor) -> Any:
    """A kernel that calls others, which autocast makes narrow."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return F.bilinear(self.lin(x), x, self.weight.expand(2, 4, 4)).sum()


def swaps_module(self: Any, x: torch.Tensor) -> Any:
    """A submodule that is replaced in the forward."""
    self.act = nn.ReLU()
    return self.act(self.lin(x)).sum()


GENERATOR = torch.Generator()
OUTSIDE = torch.randn(4, 4, requires_grad=True)
REFUSED: list[tuple[Callable[..., Any], str]] = [
    (branch, r"test_refuse\.py:\d+  if x\.mean\(\) > 0:: the step needs the value"),
    (lambda self, x: self.lin(x[x[:, 0] > 0]).sum(), "needs the value of a tensor"),
    (lambda self, x: self.lin(x).sum() * self.one.sum().item(), "needs the value of a tensor"),
    (counter, "sets its attribute 'calls'"),
    (keeps, "sets its attribute 'last'"),
    (caches, r"sets its attribute 'mask'.* run the model once"),
    (seeds, "PyTorch's generator"),
    (lambda self, x: self.lin(x).sum() * random.random(), "Python's random module"),
    (lambda self, x: self.lin(x).sum() * float(np.random.rand()), "NumPy's generator"),  # noqa: NPY002
    (lambda self, x: (self.lin(x) + torch.rand(3, 4, generator=GENERATOR)).sum(), "own generator"),
    (hooked, "hook is registered on a tensor"),
    (moves_weight, "changes the param weight in place"),
    (switches_on, "switches on the gradient"),
    (registers, "registers the parameter or buffer made"),
    (swaps_module, "sets its attribute 'act'"),
    (writes_into_a_part, r"left \+= right: .* writes in place into memory with gaps"),
    (narrow_inside, "bilinear rounds inside of its kernel as autocast says"),
    (twins, "outputs 0 and 1 share memory"),
    (outgrows, "replaces the buffer one by a tensor of another shape"),
    (lambda self, x: x * 2, "nothing that the step returns requires a gradient"),
    (lambda self, x: (self.lin(x) @ OUTSIDE).sum(), "closes over a tensor of shape"),
    (lambda self, x: F.embedding(torch.tensor([1]), self.weight, sparse=True).sum(), "sparse"),
    (lambda self, x: (self.weight[:2], self.lin(x)), "is a view of the param weight"),
    (lambda self, x: undefined(self.lin(x)), r"NameError: name 'undefined'"),  # type: ignore[name-defined]  # noqa: F821
]


def identities(model: nn.Module) -> list[tuple[str, int]]:
    """Name and identity of each parameter, buffer and submodule."""
    kinds = (model.named_parameters(), model.named_buffers(), model.named_modules())
    return [(name, id(member)) for kind in kinds for name, member in kind]


@pytest.mark.parametrize(("body", "message"), REFUSED, ids=[m[:30] for _, m in REFUSED])
def test_step_is_refused_by_name(body: Callable[..., Any], message: str) -> None:
    """The error is one line that says what is in the way, and capture leaves no trace."""
    model = Lambda(body)
    before = set(model.__dict__)
    members = identities(model)
    state = torch.get_rng_state()
    with pytest.raises(CaptureError, match=message) as caught:
        capture(model, (rows(),), times="none")
    assert "\n" not in str(caught.value)
    assert set(model.__dict__) == before
    assert identities(model) == members
    assert torch.equal(torch.get_rng_state(), state)


def test_writes_into_gapped_batches_are_refused() -> None:
    """Columns of a larger tensor may be read, but not written; whole numbers may."""

    def body(self: Any, x: torch.Tensor, labels: torch.Tensor) -> Any:
        labels[labels < 0] = 0
        return (self.lin(x) * labels).sum()

    def writes(self: Any, x: torch.Tensor, labels: torch.Tensor) -> Any:
        x[:, 1:].sub_(1)
        return self.lin(x).sum()

    batch = (torch.ones(3, 9)[:, :4], torch.ones(3, 9, dtype=torch.int64)[:, :4])
    assert capture(Lambda(body), batch, times="none").graph.ops
    with pytest.raises(CaptureError, match="sub_ writes in place into memory with gaps"):
        capture(Lambda(writes), batch, times="none")
    assert capture(Lambda(writes), (batch[0].contiguous(), batch[1]), times="none").graph.ops


def with_hook(register: str) -> nn.Module:
    """A model with a hook on its linear layer."""
    model = Lambda(lambda self, x: self.lin(x).sum())
    getattr(model.lin, register)(lambda *_: None)
    return model


MODULES: list[tuple[Callable[[], nn.Module], str]] = [
    (lambda: with_hook("register_forward_hook"), "lin .Linear. has a forward hook"),
    (lambda: with_hook("register_forward_pre_hook"), "lin .Linear. has a forward hook"),
    (lambda: with_hook("register_full_backward_hook"), "lin .Linear. has a full backward hook"),
    (lambda: nn.Sequential(nn.Embedding(9, 4, sparse=True)), "sparse gradients"),
    (lambda: nn.Sequential(nn.LazyLinear(4)), "0 .LazyLinear. has parameters without a shape"),
]


@pytest.mark.parametrize(("make", "message"), MODULES, ids=[m for _, m in MODULES])
def test_module_is_refused_by_name(make: Callable[[], nn.Module], message: str) -> None:
    """Modules whose effects a replay would lose are named."""
    with pytest.raises(CaptureError, match=message):
        capture(make(), (rows(),), times="none")


@pytest.mark.parametrize("reentrant", [False, True])
def test_state_changed_in_a_checkpoint_is_refused(reentrant: bool) -> None:
    """Eager training updates it twice, a replay would once; in eval mode it stays as it is."""

    def body(self: Any, x: torch.Tensor) -> Any:
        return checkpoint(self.inner, self.lin(x), use_reentrant=reentrant)

    model = Lambda(body, inner=nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
    with pytest.raises(CaptureError, match=r"buffer inner\.1\.running_mean changes inside torch"):
        capture(model, (rows(),), lambda out: out.sum(), times="none")
    assert capture(model.eval(), (rows(),), lambda out: out.sum(), times="none").graph.ops

    norm = nn.InstanceNorm1d(3, track_running_stats=True)
    model = Lambda(body, inner=norm)
    with pytest.raises(CaptureError, match=r"buffer inner\.running_mean changes inside torch"):
        capture(model, (rows(),), lambda out: out.sum(), times="none")

    def steps(self: Any, x: torch.Tensor) -> Any:
        self.one = self.one + 1
        return self.lin(x) * self.one

    def body_of_steps(self: Any, x: torch.Tensor) -> Any:
        return checkpoint(steps, self, self.lin(x), use_reentrant=reentrant)

    with pytest.raises(CaptureError, match="buffer one changes inside torch"):
        capture(Lambda(body_of_steps), (rows(),), lambda out: out.sum(), times="none")

    def writes(self: Any, x: torch.Tensor, seen: torch.Tensor) -> Any:
        seen.add_(1)
        return self.lin(x)

    def body_of_writes(self: Any, x: torch.Tensor, seen: torch.Tensor) -> Any:
        return checkpoint(writes, self, self.lin(x), seen, use_reentrant=reentrant)

    with pytest.raises(CaptureError, match="the input 1 changes inside torch"):
        capture(Lambda(body_of_writes), (rows(), rows()), lambda out: out.sum(), times="none")


INSIDE: list[tuple[nn.Module, str]] = [
    (nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(5, 4))), r"^1\.0 \(Linear\): the step"),
    (nn.Linear(5, 4), r"^the model \(Linear\): the step fails on fake tensors"),
]


@pytest.mark.parametrize(("model", "message"), INSIDE, ids=["nested", "model"])
def test_refusal_inside_of_pytorch_names_the_module(model: nn.Module, message: str) -> None:
    """Where no line of the user's code is to blame, the path of the module is given."""
    with pytest.raises(CaptureError, match=message):
        capture(model, (rows(),), lambda out: out.sum(), times="none")


DEEP: list[tuple[Any, Callable[[Any], Any], Callable[[Any], Any]]] = [
    (SimpleNamespace(n=1), lambda k: setattr(k, "n", k.n + 1), lambda k: k.n),
    ({"a": {"n": 1}}, lambda k: k["a"].update(n=k["a"]["n"] + 1), lambda k: k["a"]["n"]),
    ({"a": [{1}]}, lambda k: k["a"][0].add(2), lambda k: len(k["a"][0])),
    (([1],), lambda k: k[0].__setitem__(0, 2), lambda k: k[0][0]),
    (
        SimpleNamespace(a=[SimpleNamespace(n=1)]),
        lambda k: setattr(k.a[0], "n", 2),
        lambda k: k.a[0].n,
    ),
    (deque([1]), lambda k: k.append(1), len),
]


@pytest.mark.parametrize(("kept", "change", "read"), DEEP)
def test_nested_state_is_refused(kept: Any, change: Any, read: Any) -> None:
    """Python state is found at any depth, cycles included, and put back."""

    def body(self: Any, x: torch.Tensor) -> Any:
        change(self.kept)
        return self.lin(x).sum()

    model = Lambda(body)
    cycle = SimpleNamespace(kept=kept)
    cycle.itself = cycle
    model.__dict__.update(kept=kept, cycle=cycle)
    with pytest.raises(CaptureError, match=r"Lambda (sets|changes) its attribute 'kept'"):
        capture(model, (rows(),), times="none")
    assert read(kept) == 1


def test_refusal_is_silent() -> None:
    """PyTorch's own log of what fails on fake tensors does not reach the user's screen."""
    records: list[logging.LogRecord] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = records.append  # type: ignore[assignment, method-assign]
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    logger.addHandler(handler)
    try:
        with pytest.raises(CaptureError, match="must have same reduction dim"):
            capture(nn.Linear(5, 4), (rows(),), lambda out: out.sum(), times="none")
    finally:
        logger.removeHandler(handler)
    assert records == []


def test_meta_model_needs_a_device() -> None:
    """A model without a place to run is refused with the way out."""
    with torch.device("meta"):
        model = nn.Linear(4, 4)
    with pytest.raises(CaptureError, match="meta device: pass device="):
        capture(model, (rows(),), lambda out: out.sum(), times="none")


@pytest.mark.skipif(torch.backends.cuda.is_built(), reason="needs a PyTorch without CUDA")  # type: ignore[no-untyped-call]
def test_cuda_without_cuda_is_refused() -> None:
    """A device that this PyTorch does not know would crash the process."""
    with torch.device("meta"):
        model = nn.Linear(4, 4)
    with pytest.raises(CaptureError, match="built without CUDA"):
        capture(model, (rows().to("meta"),), lambda out: out.sum(), times="none", device="cuda")


def test_batch_and_loss_of_wrong_kinds() -> None:
    """Arguments that make no sense are input errors."""
    model = nn.Linear(4, 4)
    with pytest.raises(InputError, match="the batch is a str"):
        capture(model, "x", times="none")
    with pytest.raises(InputError, match="the loss takes 3 arguments"):
        capture(model, (rows(),), lambda a, b, c: a, times="none")
    with pytest.raises(InputError, match="the loss is an int"):
        capture(model, (rows(),), 3, times="none")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="the model is a function"):
        capture(rows, (rows(),), times="none")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="choose roofline"):
        capture(model, (rows(),), times="guess")  # type: ignore[arg-type]


def test_loss_must_hold_a_scalar() -> None:
    """A loss for each sample is refused; several losses, or one among other results, are taken."""
    model = nn.Linear(4, 4)
    with pytest.raises(CaptureError, match=r"no scalar .*shape \[3\]\): reduce it with sum\(\)"):
        capture(model, rows(), lambda out: out.sum(1), times="none")
    with pytest.raises(CaptureError, match=r"shape \[3\], \[3, 4\]"):
        capture(model, rows(), lambda out: {"loss": out.sum(1), "out": out}, times="none")
    losses: tuple[Any, ...] = (
        lambda out: out.sum().view(1),
        lambda out: (out.sum(), out.square().sum()),
        lambda out: {"out": out, "loss": out.sum()},
    )
    for loss in losses:
        assert capture(model, rows(), loss, times="none").graph.ops
    assert capture(model, rows(), times="none").graph.ops  # the model itself may return anything


def test_unknown_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A PyTorch outside the tried range is refused before anything private is touched."""
    monkeypatch.setattr(torch, "__version__", "2.10.1+cpu")
    with pytest.raises(CaptureError, match=r"2\.10\.1 is not supported: capture needs 2\.11"):
        export.check_version()
