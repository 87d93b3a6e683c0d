"""Numbers that a step reads from containers, objects, classes and the environment are guarded."""

from __future__ import annotations

import copy
import functools
import logging
import os
import pickle
import sys
import types
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
import torch
from torch import nn

from lowtide.frontends.torch.capture import capture
from lowtide.frontends.torch.outside.uses import Uses
from lowtide.runtime.plans.fit import fit
from lowtide.runtime.replay import replay
from lowtide.solver.errors import ReplayError
from lowtide.solver.schedule import Schedule

from ...frontends.models import Lambda, rows
from ..holding import HOLDERS, Settings
from ..schedules import plan_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowtide.runtime.module import ReplayModule

pytestmark = pytest.mark.usefixtures("one_thread")


def replayed(model: nn.Module, loss: Any) -> ReplayModule:
    """Without recomputation."""
    captured = capture(model, rows(), loss, times="none")
    return replay(captured, plan_of(captured.graph, Schedule.keep_everything(captured.graph)))


@pytest.mark.parametrize("kind", HOLDERS)
def test_a_number_that_a_loss_reads_in_a_holder_is_guarded(kind: str) -> None:
    """Another value is refused by name."""
    make, read, change = HOLDERS[kind]
    holder = make()

    def loss(out: torch.Tensor) -> torch.Tensor:
        return out.square().mean() * read(holder)

    module = replayed(nn.Linear(4, 4), loss)
    module(rows())
    module(rows())
    change(holder)
    with pytest.raises(ReplayError, match=r"holder.* of the loss is .* and was .* when captured"):
        module(rows())


@pytest.mark.parametrize("kind", HOLDERS)
def test_a_number_that_a_model_reads_in_a_holder_is_guarded(kind: str) -> None:
    """Also in a copy, which has its own holder."""
    make, read, change = HOLDERS[kind]
    model = Lambda(lambda self, x: self.lin(x).square().mean() * read(self.held))
    model.__dict__["held"] = make()
    module = replayed(model, None)
    twin = copy.deepcopy(module)
    module(rows())
    change(model.held)
    with pytest.raises(ReplayError, match=r"held.* is .* and was .* when captured"):
        module(rows())
    twin(rows())
    change(twin._wrapped.held)
    with pytest.raises(ReplayError, match="held"):
        twin(rows())


class Net(nn.Module):
    """Reads a private number, one of its class, and by a method one in a container."""

    factor = 2.0
    table: ClassVar[dict[str, float]] = {"w": 1.0}

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self._scale = 0.5
        self.cfg = {"w": 1.0, "seen": 0}

    def weight(self) -> float:
        """A number out of three places."""
        return self.cfg["w"] * self.factor * self.table["w"] * OF_METHODS["w"] * Settings.w

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A loss."""
        out: torch.Tensor = self.lin(x).square().mean()
        return out * self._scale * self.weight()


OF_METHODS = {"w": 1.0, "n": 0}
_NET_CHANGES: dict[str, Callable[[pytest.MonkeyPatch, Any], object]] = {
    "_scale": lambda _, net: setattr(net, "_scale", 1.0),
    "factor": lambda patch, _: patch.setattr(Net, "factor", 1.0),
    "factor of its own": lambda _, net: setattr(net, "factor", 1.0),
    "table": lambda patch, _: patch.setitem(Net.table, "w", 2.0),
    "cfg": lambda _, net: net.cfg.update(w=2.0),
    "OF_METHODS": lambda patch, _: patch.setitem(OF_METHODS, "w", 2.0),
    "Settings": lambda patch, _: patch.setattr(Settings, "w", 2.0),
}


@pytest.mark.parametrize("change", _NET_CHANGES)
def test_private_class_and_method_numbers_are_guarded(
    change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And those that no code reads are not."""
    module = replayed(Net(), None)
    model: Any = module.captured.model
    model.cfg["seen"] += 1
    OF_METHODS["n"] += 1
    module(rows())
    _NET_CHANGES[change](monkeypatch, model)
    with pytest.raises(ReplayError, match=f"{change.split()[0]}.* is .* and was .* when captured"):
        module(rows())


def test_an_unpickled_module_guards_them_too() -> None:
    """It counts what it reads from when it is loaded on."""
    module = pickle.loads(pickle.dumps(replayed(Net(), None)))
    module(rows())
    module._wrapped.cfg["seen"] += 1
    module(rows())
    module._wrapped.cfg["w"] = 3.0
    with pytest.raises(ReplayError, match=r"cfg\['w'\] is 3\.0 and was 1\.0"):
        module(rows())


def test_defaults_partials_modules_and_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers in default arguments, in a partial, in an imported module, in `os.environ`."""
    numbers: Any = types.ModuleType("numbers_of_a_test")
    numbers.w, numbers.calls = 1.0, 0
    monkeypatch.setitem(sys.modules, numbers.__name__, numbers)
    monkeypatch.delenv("LOWTIDE_TEST_W", raising=False)

    def loss(out: torch.Tensor, options: Any = {"w": 1.0}, *, scales: Any) -> torch.Tensor:  # noqa: B006
        found = options["w"] * scales["w"] * numbers.w
        found *= float(os.environ.get("LOWTIDE_TEST_W", "1"))
        return torch.mul(out.square().mean(), found)

    scales = {"w": 1.0}
    module = replayed(nn.Linear(4, 4), functools.partial(loss, scales=scales))
    numbers.calls += 1
    module(rows())
    holders = [(loss.__defaults__[0], "w"), (scales, "w"), (numbers.__dict__, "w")]  # type: ignore[index]
    for holder, key in [*holders, (os.environ, "LOWTIDE_TEST_W")]:
        with monkeypatch.context() as patch:
            patch.setitem(holder, key, "2" if holder is os.environ else 2.0)
            with pytest.raises(ReplayError, match=r" is .* and was .* when captured"):
                module(rows())
        module(rows())


def test_what_the_step_itself_changes_is_not_guarded() -> None:
    """Counters and notes that a loss keeps, whatever they are when it is called."""
    state: dict[str, Any] = {"calls": 0, "w": 2.0}
    notes = SimpleNamespace(calls=0, log=[])
    calls = 0

    def loss(out: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        state["calls"] += 1
        state["rows"] = len(out)
        notes.calls += 1
        notes.log.append(len(out))
        return torch.mul(out.square().mean(), state["w"])

    model = nn.Linear(4, 4)
    module = replayed(model, loss)
    module(rows())
    with torch.no_grad():
        module(rows()[:2])  # runs the plain step, which counts
    assert state["rows"] == 2
    assert torch.equal(module(rows()), loss(model(rows())))
    state["w"] = 1.0
    with pytest.raises(ReplayError, match=r"state\['w'\] of the loss is 1\.0 and was 2\.0"):
        module(rows())


def test_fit_refuses_a_number_until_it_is_planned_ahead(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As with numbers among the arguments: one that changes in each step would cost a plan each."""
    args = SimpleNamespace(beta=1.0, step=0)

    def loss(out: torch.Tensor) -> torch.Tensor:
        return torch.mul(out.square().mean(), args.beta)

    model = nn.Linear(4, 4)
    module = fit(model, rows(), memory_budget="100%", loss_fn=loss, times="roofline", time_limit=5)
    args.step += 1
    module(rows())
    args.beta = 0.5
    with pytest.raises(ReplayError, match=r"args\.beta of the loss is 0\.5 and was 1\.0.*prepare"):
        module(rows())
    module.prepare(rows())
    for args.beta in (0.5, 1.0, 0.5):
        assert torch.equal(module(rows()), loss(model(rows())))
    with caplog.at_level(logging.WARNING, "lowtide.runtime.plans.shapes"):
        assert torch.equal(module(rows()[:2]), loss(model(rows()[:2])))
    records = [r.getMessage() for r in caplog.records if r.name == "lowtide.runtime.plans.shapes"]
    before, after = records
    assert before.startswith("planning a new call (the solver may take 5 s): ")
    assert "Planned in" in after


def test_a_hugging_face_config_is_guarded_where_it_is_read() -> None:
    """Of its many attributes those that the forward asks for."""
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=2, bos_token_id=0,
        eos_token_id=0, use_cache=False,
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(config).train()
    ids = torch.arange(8)[None]
    model(input_ids=ids, labels=ids)  # says something, once, to pytest's handlers of logs
    captured = capture(model, {"input_ids": ids, "labels": ids}, times="none")
    module = replay(captured, plan_of(captured.graph, Schedule.keep_everything(captured.graph)))
    assert captured.behaviours is not None
    assert len(captured.behaviours[0].outside) < 30
    config.summary_first_dropout, config.note_of_a_trainer = 0.9, "x"
    config.dtype = "float32"  # as saving a checkpoint does
    module(input_ids=ids, labels=ids)
    config.output_hidden_states = True
    with pytest.raises(ReplayError, match=r"config\.output_hidden_states is True and was False"):
        module(input_ids=ids, labels=ids)


def test_uses_of_containers() -> None:
    """One entry, any, all; through a local name as well."""

    def code(self: Any, key: str) -> Any:
        local = self.a
        other = self.b
        print(self.c["x"], self.d.get("y"), self.e[key], self.f.items(), len(self.g))
        self.h["z"] = 1
        return local["x"], [item for item in other]

    uses = Uses()
    uses.add(code.__code__)
    assert {"x", "y", "z"} <= uses.words
    assert {"e"} == uses.dynamic & set("abcdefgh")
    assert {"b", "f", "g"} == uses.whole & set("abcdefgh")
    assert ("h", "z") in uses.written
    assert not uses.opened
    assert {("c", "x"), ("d", "y"), ("a", "x"), ("self", "a")} <= uses.read
    uses.add((lambda o, n: getattr(o.k, f"w{n}")).__code__)
    assert "k" in uses.opened
