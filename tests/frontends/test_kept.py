"""What a step leaves behind, besides what it returns, is refused and taken back."""

from __future__ import annotations

import functools
import itertools
import random
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import lowtide
from lowtide.frontends.torch.capture import capture
from lowtide.solver.errors import CaptureError

from .models import Lambda, rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LOG: list[Any] = []
HELD: dict[Any, Any] = {}
OBJECT = SimpleNamespace()
LOCAL = threading.local()


def appends(self: Any, x: torch.Tensor) -> Any:
    """Activations in a global list."""
    h = self.lin(x)
    LOG.append(h.detach())
    return h.sum()


def sets(self: Any, x: torch.Tensor) -> Any:
    """Activations in a global dict, one level down."""
    h = self.lin(x)
    HELD.setdefault("all", []).append((h.detach(), 1))
    return h.sum()


def remembers(self: Any, x: torch.Tensor) -> Any:
    """Activations as an attribute of an object."""
    h = self.lin(x)
    OBJECT.last = h.detach()
    return h.sum()


def of_the_thread(self: Any, x: torch.Tensor) -> Any:
    """Activations as an attribute that each thread has for itself."""
    h = self.lin(x)
    LOCAL.last = h.detach()
    return h.sum()


def marks(self: Any, x: torch.Tensor) -> Any:
    """Activations as an attribute of the function itself."""
    h = self.lin(x)
    marks.last = h.detach()  # type: ignore[attr-defined]
    return h.sum()


def of_the_class(self: Any, x: torch.Tensor) -> Any:
    """Activations as an attribute of the model's class."""
    h = self.lin(x)
    type(self).last = h.detach()
    return h.sum()


def fills(self: Any, x: torch.Tensor) -> Any:
    """A cache that the first step fills."""
    if "positions" not in HELD:
        HELD["positions"] = torch.arange(4.0)
    return (self.lin(x) * HELD["positions"]).sum()


class Noting(torch.autograd.Function):
    """Keeps gradients as they come by."""

    @staticmethod
    def forward(_ctx: Any, x: torch.Tensor) -> torch.Tensor:
        """The identity."""
        return x.clone()

    @staticmethod
    def backward(_ctx: Any, *gradients: torch.Tensor) -> Any:
        """Note the gradient."""
        LOG.append(gradients[0])
        return gradients[0]


def notes(self: Any, x: torch.Tensor) -> Any:
    """Gradients in a global list."""
    return Noting.apply(self.lin(x)).sum()  # type: ignore[no-untyped-call]


@functools.lru_cache
def ramp(count: int) -> tuple[torch.Tensor, int]:
    """What is remembered by `functools`."""
    return torch.arange(float(count)), count


def remembered(self: Any, x: torch.Tensor) -> Any:
    """A cache that no name leads to."""
    return (self.lin(x) * ramp(4)[0]).sum()


def fills_by_pairs(self: Any, x: torch.Tensor) -> Any:
    """A cache with tuples as keys."""
    key = (x.shape[1], "cpu", True)
    if key not in HELD:
        HELD[key] = torch.arange(4.0)
    return (self.lin(x) * HELD[key]).sum()


def fills_and_fails(self: Any, x: torch.Tensor) -> Any:
    """A step that is refused for something else, too."""
    return fills(self, x) + ramp(4)[0].sum() * self.lin(x).sum().item()


def clean() -> None:
    """As before any step."""
    LOG.clear()
    HELD.clear()
    OBJECT.__dict__.clear()
    LOCAL.__dict__.clear()
    marks.__dict__.clear()
    if hasattr(Lambda, "last"):
        del Lambda.last


KEPT: list[tuple[Callable[..., Any], str, Callable[[], Any]]] = [
    (appends, r"global LOG\[0\]", lambda: len(LOG)),
    (sets, r"global HELD\['all'\]\[0\]", lambda: None),
    (remembers, r"global OBJECT\.last", lambda: len(vars(OBJECT))),
    (of_the_thread, r"global LOCAL\.last", lambda: len(vars(LOCAL))),
    (marks, "last of ", lambda: len(vars(marks))),
    (of_the_class, "last", lambda: hasattr(Lambda, "last")),
    (fills, r"global HELD\['positions'\]", lambda: len(HELD)),
    (notes, r"global LOG\[0\]", lambda: len(LOG)),
]


@pytest.mark.parametrize(("body", "place", "left"), KEPT, ids=[b.__name__ for b, _, _ in KEPT])
def test_tensors_kept_outside_are_refused(
    body: Callable[..., Any], place: str, left: Callable[[], Any]
) -> None:
    """A replay would leave old ones there; those of the trace are not left behind."""
    clean()
    try:
        with pytest.raises(CaptureError, match=f"puts a tensor into {place}"):
            capture(Lambda(body), (rows(),), times="none")
        assert not left()
    finally:
        clean()


def test_filled_caches_and_counters_are_fine() -> None:
    """A cache is read from once it is full; counts are the caller's own affair."""

    def counts(self: Any, x: torch.Tensor) -> Any:
        LOG.append(1)
        return self.lin(x).sum()

    clean()
    try:
        model = Lambda(fills)
        model(rows())
        assert capture(model, (rows(),), times="none").graph.ops
        assert capture(Lambda(counts), (rows(),), times="none").graph.ops
    finally:
        clean()


@pytest.mark.parametrize("kind", ["dict", "list", "replaced"])
def test_batches_that_the_step_fills_are_refused(kind: str) -> None:
    """The caller's own list or dict would not get what plain PyTorch puts there."""

    def fill(self: Any, x: torch.Tensor, held: Any) -> Any:
        h = self.lin(x)
        if isinstance(held, list):
            held.append(h.detach())
        else:
            held["x" if kind == "replaced" else "h"] = h.detach()
        return h.sum()

    held: Any = [] if kind == "list" else {"x": rows()}
    batch = (rows(), held)
    with pytest.raises(CaptureError, match="what a list or dict in its batch holds"):
        capture(Lambda(fill), batch, times="none")
    assert len(held) == (kind != "list")

    def copies(self: Any, x: torch.Tensor, held: Any) -> Any:
        return fill(self, x, held.copy())

    assert capture(Lambda(copies), batch, times="none").graph.ops


@pytest.mark.parametrize(
    ("body", "line"),
    [
        (remembered, "fills the cache of ramp with a tensor"),
        (fills_by_pairs, r"puts a tensor into global HELD\[\(4, 'cpu', True\)\]"),
        (fills_and_fails, "needs the value of a tensor"),
    ],
)
def test_a_refused_step_leaves_caches_as_they_were(body: Callable[..., Any], line: str) -> None:
    """The plain model goes on with tensors of its own, not with those of a trace."""
    clean()
    ramp.cache_clear()
    model = Lambda(body)
    try:
        with pytest.raises(CaptureError, match=line):
            capture(model, (rows(),), times="none")
        assert not HELD
        assert not ramp.cache_info().currsize
        assert torch.isfinite(model(rows()))
        if body is fills_by_pairs:
            assert capture(model, (rows(),), times="none").graph.ops
    finally:
        clean()


def test_batches_that_the_step_takes_apart() -> None:
    """What is taken out, and constants that are put in, are the same after a replay."""

    def body(self: Any, batch: Any) -> Any:
        labels = batch.pop("labels")
        batch["rows"] = batch["x"].shape[0]
        batch["x"] = batch.pop("x")
        batch["deep"]["list"][:] = [batch["deep"]["list"].pop()]
        batch.setdefault("mask", None)
        return (self.lin(batch["x"]) - labels).square().mean()

    def made() -> dict[str, Any]:
        return {"x": rows(), "labels": rows() + 1, "deep": {"list": [rows(), 2.5], "t": (1,)}}

    model = Lambda(body)
    fitted = lowtide.fit(model, (made(),), memory_budget="100%", time_limit=1, quiet=True)
    plain, replayed = made(), made()
    deep = replayed["deep"]
    assert torch.equal(model(plain), fitted(replayed))
    assert list(plain) == list(replayed) == ["deep", "rows", "x", "mask"]
    assert replayed["deep"] is deep
    assert deep == plain["deep"] == {"list": [2.5], "t": (1,)}
    assert (replayed["rows"], replayed["mask"]) == (plain["rows"], None)
    assert lowtide.verify(model, fitted, [(made(),)]).ok


def test_equal_numbers_in_a_batch_are_the_same() -> None:
    """A step may put an equal number, or the same tensor, where it was."""

    def body(self: Any, batch: Any) -> Any:
        for key, item in batch.items():
            batch[key] = item.to("cpu") if isinstance(item, torch.Tensor) else item + 0.0
        return self.lin(batch["x"]).sum() * batch["scale"]

    found = capture(Lambda(body), ({"x": rows(), "scale": 1000.5},), times="none")
    assert found.program.refill is None


@pytest.mark.parametrize("kind", ["counts", "swaps"])
def test_batches_that_change_in_other_ways_are_refused(kind: str) -> None:
    """By something else in each run, or lists that change places."""

    def body(self: Any, batch: Any) -> Any:
        if kind == "counts":
            batch["step"] = len(LOG)
            LOG.append(1)
        else:
            batch["a"], batch["b"] = batch["b"], batch["a"]
        return self.lin(batch["x"]).sum()

    try:
        with pytest.raises(CaptureError, match="changes what a list or dict in its batch holds"):
            capture(Lambda(body), ({"x": rows(), "a": [1], "b": [2]},), times="none")
    finally:
        clean()


def forked(self: Any, x: torch.Tensor) -> Any:
    """The generator as if nothing had been drawn."""
    with torch.random.fork_rng(devices=[]):
        noise = torch.randn(4)
    return (self.lin(x) + noise + torch.randn(4)).sum()


def drawn_again(self: Any, x: torch.Tensor) -> Any:
    """One mask twice."""
    state = torch.get_rng_state()
    first = nn.functional.dropout(self.lin(x))
    torch.set_rng_state(state)
    return (first * nn.functional.dropout(self.lin(x + 1))).sum()


def set_directly(self: Any, x: torch.Tensor) -> Any:
    """The same by the generator's own methods."""
    state = torch.default_generator.get_state()
    noise = torch.randn(4)
    torch.default_generator.set_state(state)
    return (self.lin(x) + noise).sum()


class Forking(torch.autograd.Function):
    """Noise in backward that leaves the generator alone."""

    @staticmethod
    def forward(_ctx: Any, x: torch.Tensor) -> torch.Tensor:
        """The identity."""
        return x.clone()

    @staticmethod
    def backward(_ctx: Any, *gradients: torch.Tensor) -> Any:
        """Add noise."""
        with torch.random.fork_rng(devices=[]):
            return gradients[0] + torch.randn(4)


def forked_in_backward(self: Any, x: torch.Tensor) -> Any:
    """The same in backward."""
    return Forking.apply(self.lin(x)).sum()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("body", [forked, drawn_again, set_directly, forked_in_backward])
def test_states_of_generators_that_are_put_back_are_refused(body: Callable[..., Any]) -> None:
    """Nothing of it is in a trace, and the state afterwards is the one before."""
    model = Lambda(body)
    state = torch.get_rng_state()
    with pytest.raises(CaptureError, match=r"test_kept\.py:\d+ .*sets the state of, PyTorch's gen"):
        capture(model, (rows(),), times="none")
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints_that_draw_anew_are_refused(reentrant: bool) -> None:
    """Without the state of the generator backward has other masks than forward."""

    def body(self: Any, x: torch.Tensor, preserve: bool, rate: float) -> Any:
        def drop(h: torch.Tensor) -> torch.Tensor:
            return nn.functional.dropout(h, rate).sin()

        h = checkpoint(drop, self.lin(x), use_reentrant=reentrant, preserve_rng_state=preserve)
        return h.sum()

    with pytest.raises(CaptureError, match=r"draws random numbers inside torch\.utils\.chec"):
        capture(Lambda(body), (rows(), False, 0.5), times="none")
    assert capture(Lambda(body), (rows(), False, 0.0), times="none").graph.ops
    assert capture(Lambda(body), (rows(), True, 0.5), times="none").graph.ops


MOVING: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], str]] = {
    "random": (lambda: random.Random(3), lambda made: made.random(), "draws from the generator"),
    "numpy": (
        lambda: np.random.default_rng(3),
        lambda made: float(made.random()),
        "draws from the generator",
    ),
    "old numpy": (
        lambda: np.random.RandomState(3),
        lambda made: float(made.rand()),
        "draws from the generator",
    ),
    "count": (itertools.count, lambda made: float(next(made)), "asks the iterator"),
    "loop": (lambda: iter([1.0] * 9), lambda made: _first(made), "asks the iterator"),
    "generator": (lambda: (float(i) for i in range(9)), lambda made: next(made), "asks the iter"),
    "zip": (lambda: zip([2.0] * 9, strict=True), lambda made: next(made)[0], "asks the iterator"),
    "sentinel": (lambda: iter(int, 1), lambda made: float(next(made)), "asks the iterator"),
}


def _first(items: Any) -> float:
    """The next item, by a loop."""
    for item in items:
        return float(item)
    return 0.0


@pytest.mark.parametrize("where", ["attribute", "closure"])
@pytest.mark.parametrize("kind", list(MOVING))
def test_what_moves_on_with_each_step_is_refused(kind: str, where: str) -> None:
    """Numbers of generators and iterators of one's own; generators have their states again."""
    make, draw, message = MOVING[kind]
    made = make()

    def body(self: Any, x: torch.Tensor) -> Any:
        return (self.lin(x) * draw(self.made if where == "attribute" else made)).sum()

    model = Lambda(body)
    model.made = made
    with pytest.raises(CaptureError, match=message):
        capture(model, (rows(),), times="none")
    assert "draws" not in message or draw(made) == draw(make())


def test_what_could_move_and_does_not_is_fine() -> None:
    """A generator that the step leaves alone, and layers that keep lists of their weights."""
    made = random.Random(3)

    def body(self: Any, x: torch.Tensor) -> Any:
        return self.rnn(x)[0].sum() * (made is not None)

    assert capture(Lambda(body, rnn=nn.GRU(4, 4)), (rows(),), times="none").graph.ops


def _numbers() -> Iterator[int]:
    """A generator of one's own."""
    for number in itertools.count():  # noqa: UP028
        yield number


def _begun(items: Iterator[Any]) -> Iterator[Any]:
    """After its first item."""
    next(items)
    return items


RESTING: dict[str, Callable[[], Iterator[Any]]] = {
    "list": lambda: _begun(iter([torch.ones(2), torch.ones(2)])),
    "at its end": lambda: _begun(iter([1])),
    "dict": lambda: _begun(iter({"a": 1, "b": 2}.items())),
    "set": lambda: iter({1, 2, 3}),
    "text": lambda: _begun(iter("abc")),
    "range": lambda: _begun(iter(range(10**9))),
    "zip": lambda: _begun(zip(iter([1, 2]), itertools.count(), strict=False)),
    "map": lambda: map(str, _begun(enumerate("ab"))),
    "cycle": lambda: _begun(itertools.cycle([1, 2])),
    "islice": lambda: _begun(itertools.islice(itertools.chain([1], [2, 3]), 2)),
    "generator": lambda: _begun(_numbers()),
    "fresh generator": _numbers,
    "expression": lambda: _begun(i for i in [1, 2]),
}


@pytest.mark.parametrize("kind", list(RESTING))
def test_iterators_that_the_step_looks_at_are_fine(kind: str) -> None:
    """Those of a training loop may be within reach while the step asks another for an item."""
    held = SimpleNamespace(data=RESTING[kind]())

    def body(self: Any, x: torch.Tensor) -> Any:
        parameter = next(self.parameters())
        assert self.data is held.data
        return self.lin(x.data.to(parameter.dtype)).sum()

    model = Lambda(body)
    model.data = held.data
    assert capture(model, (rows(),), times="none").graph.ops
