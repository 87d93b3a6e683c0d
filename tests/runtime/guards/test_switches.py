"""Global settings of PyTorch: those a capture has built in are guarded, the rest is followed."""

from __future__ import annotations

import contextlib
import copy
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import lowtide
from lowtide.frontends.torch.capture import capture
from lowtide.frontends.torch.switches import TRACED, of_kinds, traced
from lowtide.runtime.replay import replay
from lowtide.solver.errors import CaptureError, ReplayError

from ...plans import recomputing
from ..models import square
from ..schedules import plan_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from lowtide.runtime.module import ReplayModule

pytestmark = pytest.mark.usefixtures("one_thread")


class Net(nn.Module):
    """Attention, a recurrent layer, and a constant of the default type on the default device."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.rnn = nn.Linear(8, 8), nn.LSTM(8, 8, batch_first=True)

    def forward(self, x: torch.Tensor) -> Any:
        """All three."""
        h, _ = self.rnn(self.lin(x).tanh())
        h = h.unsqueeze(1)
        return F.scaled_dot_product_attention(h, h, h) * torch.full((8,), 0.1)


@contextlib.contextmanager
def _set(read: Callable[[], Any], write: Callable[[Any], Any], value: Any) -> Iterator[None]:
    before = read()
    write(value)
    try:
        yield
    finally:
        write(before)


class _Mode(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        return out * 2 if func is F.scaled_dot_product_attention else out


_deterministic = torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms
_BAKED: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "torch.backends.cuda.flash_sdp": lambda: sdpa_kernel(SDPBackend.MATH),
    "torch.backends.mkldnn.enabled": lambda: _set(
        lambda: torch.backends.mkldnn.enabled, torch.backends.mkldnn.set_flags, False
    ),
    "the default dtype": lambda: _set(
        torch.get_default_dtype, torch.set_default_dtype, torch.float64
    ),
    "torch.use_deterministic_algorithms": lambda: _set(*_deterministic, True),
    "the stack of function modes": _Mode,
    "default device": lambda: torch.device("cpu"),
    "torch.backends.mha fastpath": lambda: _set(
        torch.backends.mha.get_fastpath_enabled, torch.backends.mha.set_fastpath_enabled, False
    ),
}


def _x() -> torch.Tensor:
    return torch.randn(2, 5, 8, dtype=torch.float32, generator=torch.Generator().manual_seed(1))


def _step(model: nn.Module, *, loss: Any = None) -> list[torch.Tensor]:
    """Loss and gradients of a step."""
    model.zero_grad()
    out = model(_x())
    out = out if loss is None else loss(out)
    out.backward()
    found = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    return [out.detach(), *found]


def _equal(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return len(a) == len(b) and all(
        x.dtype == y.dtype and torch.equal(x, y) for x, y in zip(a, b, strict=True)
    )


def _replayed(net: nn.Module) -> ReplayModule:
    captured = capture(net, _x(), square)
    return replay(captured, plan_of(captured.graph, recomputing(captured.graph)))


@pytest.mark.parametrize("name", _BAKED)
def test_built_in(name: str) -> None:
    """Replay refuses another setting by name, and goes on when it is set back."""
    torch.manual_seed(0)
    net = Net()
    module = _replayed(net)
    with _BAKED[name](), pytest.raises(ReplayError, match="is made") as caught:
        module(_x())
    assert name in str(caught.value)
    assert _equal(_step(copy.deepcopy(net), loss=square), _step(module))


@pytest.mark.parametrize("name", _BAKED)
def test_fit_plans_another(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """A fitted module plans for the other setting, and is exact under both."""
    torch.manual_seed(0)
    net = Net()
    plain = copy.deepcopy(net)
    module = lowtide.fit(net, _x(), memory_budget="1MiB", loss_fn=square, times="roofline")
    with _BAKED[name]():
        assert _equal(_step(plain, loss=square), _step(module))
    assert name in caplog.text
    caplog.clear()
    assert _equal(_step(plain, loss=square), _step(module))
    assert not caplog.text


def test_captured_under_a_setting() -> None:
    """What was set at capture is what is asked for later."""
    torch.manual_seed(0)
    net = Net()
    with sdpa_kernel(SDPBackend.MATH):
        module = _replayed(net)
        assert _equal(_step(copy.deepcopy(net), loss=square), _step(module))
    assert "flash_attention" not in module.code
    with pytest.raises(ReplayError, match="flash_sdp is True and was False"):
        module(_x())


def test_every_setting_has_a_value_that_pickles_and_compares() -> None:
    """Read twice, they are equal; names are distinct."""
    assert traced() == traced()
    assert len(dict(traced())) == len(TRACED)
    assert {s.kind for s in of_kinds(TRACED, ["cpu"])} == {"", "cpu"}


_RUNNING: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "number of threads": lambda: _set(torch.get_num_threads, torch.set_num_threads, 2),
    "float32 matmul": lambda: _set(
        torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "high"
    ),
    "set_flush_denormal": lambda: _set(lambda: False, torch.set_flush_denormal, True),
}


@pytest.mark.parametrize("name", _RUNNING)
def test_followed(name: str) -> None:
    """What kernels read is followed, for a whole step."""
    torch.manual_seed(0)
    net = Net()
    module = _replayed(net)
    with _RUNNING[name]():
        assert _equal(_step(copy.deepcopy(net), loss=square), _step(module))


@pytest.mark.parametrize("name", _RUNNING)
def test_changed_within_a_step(name: str) -> None:
    """Another setting in backward is refused if operators of forward run again in it."""
    torch.manual_seed(0)
    net = Net()
    loss = _replayed(net)(_x())
    with _RUNNING[name](), pytest.raises(ReplayError, match=name):
        loss.backward()
    loss.backward()  # nothing was used up

    captured = capture(net, _x(), square)
    keep = lowtide.solve(captured.graph, "100%", method="keep_everything")
    net.zero_grad()
    loss = replay(captured, keep)(_x())
    with _RUNNING[name]():
        loss.backward()
    assert net.lin.weight.grad is not None


def test_inference_mode() -> None:
    """In inference mode a step runs plain, also with gradients on, and capture refuses by name."""
    net = Net()
    module = _replayed(net)
    with torch.inference_mode():
        assert torch.equal(module(_x()), square(net(_x())))
        with torch.enable_grad():
            assert not module(_x()).requires_grad
        with pytest.raises(CaptureError, match="inference mode"):
            capture(net, _x(), square)


def test_anomaly_mode_changes_nothing() -> None:
    """Anomaly mode is followed by autograd itself."""
    torch.manual_seed(0)
    net = Net()
    module = _replayed(net)
    with torch.autograd.set_detect_anomaly(True):
        assert _equal(_step(copy.deepcopy(net), loss=square), _step(module))
