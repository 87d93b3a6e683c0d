"""What programs do to modules does the same to a replayed one, or is refused by name."""

from __future__ import annotations

import copy
import functools
import inspect
import io
import random
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize, prune

from lowtide.frontends.torch.capture import capture
from lowtide.runtime.module import ReplayModule
from lowtide.runtime.replay import replay
from lowtide.solver.errors import ReplayError

from .models import square
from .schedules import plan_of, random_schedule

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.usefixtures("one_thread")

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))


class Net(nn.Module):
    """Parameters and buffers of its own, children, dropout, a number, overridden methods."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.2))
        self.head = nn.Linear(8, 4)
        self.scale = nn.Parameter(torch.ones(4))
        self.register_buffer("offset", torch.zeros(4))
        self.factor = 2.0

    def forward(self, x: torch.Tensor, *, shift: float = 0.0) -> Any:
        """Something of everything."""
        return self.head(self.body(x)) * self.scale * self.factor + self.offset + shift

    def double(self) -> Any:
        """Refuse, as models with quantized weights do."""
        raise ValueError("not this model")

    def float(self) -> Any:
        """Note the call."""
        self.was_float = True
        return super().float()

    def count(self) -> int:
        """Number of parameters."""
        return sum(p.numel() for p in self.parameters())


class Other(Net):
    """A class like it."""


@functools.cache
def _shared() -> tuple[Net, ReplayModule]:
    torch.manual_seed(0)
    model = Net()
    captured = capture(copy.deepcopy(model), X, square)
    schedule = random_schedule(captured.graph, random.Random(2))
    assert schedule.recomputes() > 0
    return model, replay(captured, plan_of(captured.graph, schedule))


def _pair() -> tuple[Net, ReplayModule]:
    """The plain module and the replayed one, fresh and equal."""
    return copy.deepcopy(_shared()[0]), copy.deepcopy(_shared()[1])


def _loss(module: Any, out: Any = None) -> torch.Tensor:
    """The loss of a step with fixed dropout; `out` for a call that was made already."""
    if out is None:
        torch.manual_seed(3)
        out = module(X)
    loss: torch.Tensor = out if out.dim() == 0 else square(out)
    return loss


def _outcome(module: Any) -> list[Any]:
    """Loss, gradients, and state after one step; names with all of them."""
    loss = _loss(module)
    if loss.requires_grad:
        loss.backward()  # type: ignore[no-untyped-call]
    gradients = [(name, p.grad, p.requires_grad) for name, p in module.named_parameters()]
    return [loss.detach(), gradients, list(module.state_dict().items())]


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(_equal, a, b))
    return bool(a == b)


def _load(module: Any) -> Any:
    state = {n: t + 1 if t.is_floating_point() else t for n, t in module.state_dict().items()}
    return str(module.load_state_dict(state))


def _save(module: Any) -> Any:
    stream = io.BytesIO()
    torch.save(module, stream)
    stream.seek(0)
    return torch.load(stream, weights_only=False)


def _freeze(module: Any) -> None:
    module.body[0].requires_grad_(False)
    module.scale.requires_grad_(False)


def _clip(module: Any) -> Any:
    _loss(module).backward()  # type: ignore[no-untyped-call]
    norm = nn.utils.clip_grad_norm_(module.parameters(), 0.01)
    nn.utils.clip_grad_value_(module.parameters(), 0.001)
    return norm


def _vector(module: Any) -> Any:
    vector = nn.utils.parameters_to_vector(module.parameters())
    nn.utils.vector_to_parameters(vector * 0.5, module.parameters())
    return vector.detach()


def _average(module: Any) -> Any:
    average = torch.optim.swa_utils.AveragedModel(module, use_buffers=True)
    for _ in range(2):
        with torch.no_grad():
            module.scale.mul_(0.5)
        average.update_parameters(module)
    return _outcome(average.module)


def _functional(module: Any) -> Any:
    values = {n: (p * 0.5).detach().requires_grad_() for n, p in module.named_parameters()}
    torch.manual_seed(3)
    loss = _loss(module, torch.func.functional_call(module, values, (X,)))
    return torch.autograd.grad(loss, list(values.values()))


def _attributes(module: Any) -> Any:
    module.note = "new"
    found = [module.note, module.factor, module.count(), hasattr(module, "nothing")]
    del module.note
    return [*found, hasattr(module, "note"), module.offset.shape, "count" in dir(module)]


def _assigned(module: Any) -> None:
    module.scale = nn.Parameter(torch.full((4,), 3.0))
    module.offset = torch.ones(4)


def _found(module: Any) -> Any:
    return [
        [name for name, _ in module.named_modules()],
        [name for name, _ in module.named_buffers()],
        [name for name, _ in module.named_children()],
        module.get_parameter("body.0.weight").shape,
        module.get_buffer("body.1.running_mean").shape,
        type(module.get_submodule("body.2")),
        sorted({*module._parameters, *module._buffers, *module._modules}),
    ]


def _hooks(module: Any) -> Any:
    seen: list[Any] = []
    module.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    module.register_forward_hook(
        lambda _, args, kwargs, out: seen.append((len(args), len(kwargs))), with_kwargs=True
    )
    module.scale.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
    module.head.weight.register_hook(lambda grad: grad * 2)
    _loss(module).backward()  # type: ignore[no-untyped-call]
    return seen


def _backward_hooks(module: Any) -> Any:
    seen: list[Any] = []
    module.register_full_backward_pre_hook(lambda *_: seen.append("before"))
    module.register_full_backward_hook(lambda *_: seen.append("after"))
    x = X.clone()
    torch.manual_seed(3)
    _loss(module, module(x)).backward()  # type: ignore[no-untyped-call]
    return seen


def _state_hooks(module: Any) -> Any:
    seen: list[str] = []
    module.register_state_dict_pre_hook(lambda *_: seen.append("save"))
    module.register_state_dict_post_hook(lambda *_: seen.append("saved"))
    module.register_load_state_dict_pre_hook(lambda *_: seen.append("load"))
    module.register_load_state_dict_post_hook(lambda *_: seen.append("loaded"))
    module.load_state_dict(module.state_dict())
    return seen


def _overridden(module: Any) -> Any:
    with pytest.raises(ValueError, match="not this model"):
        module.double()
    return [module.float() is module, module.was_float]


def _looks(module: Any) -> Any:
    return [
        module.__class__, isinstance(module, Net), module._get_name(),
        list(inspect.signature(module.forward).parameters),
        list(inspect.signature(module.__class__.forward).parameters),
    ]  # fmt: skip


def _initialise(module: Any) -> None:
    def fill(part: nn.Module) -> None:
        if isinstance(part, nn.Linear):
            nn.init.constant_(part.weight, 0.1)

    module.apply(fill)


def _step(module: Any) -> Any:
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1)
    _loss(module).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    module.zero_grad()
    return [p.grad is None for p in module.parameters()]


def _modes(module: Any) -> Any:
    flags = [module.eval().training, module.body.training]
    out = square(module(X)) if not isinstance(module, ReplayModule) else module(X)
    return [*flags, out.detach(), module.train() is module, module.body.training]


SAME: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda module: None,
    "load_state_dict": _load,
    "deepcopy": copy.deepcopy,
    "save": _save,
    "to": lambda module: module.to("cpu", torch.float32) is module,
    "half and back": lambda module: module.half() is module and module.float() is module,
    "share_memory": lambda module: module.share_memory().scale.is_shared(),
    "modes": _modes,
    "freeze": _freeze,
    "freeze all": lambda module: module.requires_grad_(False) is module,
    "zero_grad": _step,
    "apply": _initialise,
    "clip": _clip,
    "vector": _vector,
    "average": _average,
    "functional_call": _functional,
    "attributes": _attributes,
    "assigned": _assigned,
    "found": _found,
    "hooks": _hooks,
    "backward hooks": _backward_hooks,
    "state dict hooks": _state_hooks,
    "overridden methods": _overridden,
    "looks": _looks,
}


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")  # no input needs a gradient
@pytest.mark.parametrize("what", list(SAME))
def test_same(what: str) -> None:
    """The operation gives the same, and so does a training step after it."""
    plain, module = _pair()
    found = [SAME[what](subject) for subject in (plain, module)]
    subjects = [plain, module]
    if isinstance(found[0], nn.Module):
        assert all(isinstance(p, nn.Module) for p in found)
        subjects, found = found, [None, None]
    assert isinstance(subjects[1], ReplayModule)
    assert _equal(found[0], found[1]), found
    assert _equal(_outcome(subjects[0]), _outcome(subjects[1]))


def _wider(module: Any) -> None:
    module.head = nn.Linear(8, 4, bias=False)


def _more(module: Any) -> None:
    module.extra = nn.Linear(2, 2)


REFUSED_AT_THE_CALL: dict[str, tuple[Callable[[Any], Any], str]] = {
    "half": (lambda module: module.half(), "float16"),
    "meta": (lambda module: module.to("meta"), "on meta; the plan was made for .* on cpu"),
    "another child": (_wider, "no parameter head.bias"),
    "one more child": (_more, "has 3 children and had 2"),
    "prune": (
        lambda module: prune.l1_unstructured(module.head, "weight", 0.5),  # type: ignore[no-untyped-call]
        "no parameter head.weight",
    ),
    "parametrize": (
        lambda module: parametrize.register_parametrization(module.head, "weight", nn.Identity()),
        "head is a ParametrizedLinear and was a Linear",
    ),
    "spectral norm": (lambda module: nn.utils.spectral_norm(module.head), "head.weight"),
    "hook on a child": (
        lambda module: module.head.register_forward_hook(lambda *_: None),
        "head has got a forward hook",
    ),
    "parametrize the outside": (
        lambda module: parametrize.register_parametrization(module, "scale", nn.Identity()),
        "the module is a ParametrizedNet and was a Net",
    ),
    "another class": (
        lambda module: setattr(module, "__class__", Other),
        "the module is an Other and was a Net",
    ),
    "number": (lambda module: setattr(module, "factor", 3.0), "factor is 3.0 and was 2.0"),
}


@pytest.mark.parametrize("what", list(REFUSED_AT_THE_CALL))
def test_refused_at_the_call(what: str) -> None:
    """What makes another step of it is noticed by the next call, which says what it is."""
    change, message = REFUSED_AT_THE_CALL[what]
    _, module = _pair()
    change(module)
    with pytest.raises(ReplayError, match=message):
        module(X)


def test_parametrizing_the_outside_parametrizes_the_original() -> None:
    """It then computes as the plain one does, where no plan is needed."""
    plain, module = _pair()
    for subject in (plain, module):
        parametrize.register_parametrization(subject, "scale", nn.Tanh())
        subject.eval()
    assert torch.equal(module(X), square(plain(X)))
    assert list(module.state_dict()) == list(plain.state_dict())


def test_data_parallel_is_refused() -> None:
    """Replicas would compute with the parameters of another device."""
    _, module = _pair()
    with pytest.raises(ReplayError, match="DataParallel"):
        module._replicate_for_data_parallel()


def test_parameters_are_those_of_the_wrapped_module() -> None:
    """Not copies: an optimizer made before fitting trains what is replayed."""
    _, module = _pair()
    model: Any = module.captured.model
    assert [id(p) for p in module.parameters()] == [id(p) for p in model.parameters()]
    assert [id(b) for b in module.buffers()] == [id(b) for b in model.buffers()]
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    _loss(module).backward()  # type: ignore[no-untyped-call]
    before = module.scale.clone()
    optimizer.step()
    assert not torch.equal(before, module.scale)
