"""A model that is called with several kinds of batches, and what there is to compare."""

from __future__ import annotations

import copy
import functools
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional as F

from lowtide.runtime.plans.fit import fit

if TYPE_CHECKING:
    import pytest

    from lowtide.runtime.module import ReplayModule


LOGGER = "lowtide.runtime.plans.shapes"


class Net(nn.Module):
    """Batch norm, dropout, residual layers of any length, an optional argument."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
        self.drop = nn.Dropout(0.3)

    def forward(self, x: torch.Tensor, scale: Any = None, times: Any = 1) -> Any:
        """The mean square."""
        for layer in self.layers:
            x = x + self.drop(F.gelu(layer(self.norm(x)))) * times
        return (x if scale is None else x * scale).square().mean()


def made_net() -> Net:
    """With the same weights each time."""
    torch.manual_seed(3)
    return Net()


def rows_of(count: int, seed: int = 0) -> torch.Tensor:
    """A batch of `count` rows."""
    return torch.randn(count, 6, generator=torch.Generator().manual_seed(seed))


def fit_net(model: nn.Module, **more: Any) -> ReplayModule:
    """Fitted with 8 rows and more memory than it takes."""
    return fit(model, rows_of(8), **{"memory_budget": "1MiB", "times": "roofline", **more})


@functools.cache
def shared(policy: Any) -> ReplayModule:
    """What `fitted` copies."""
    return fit_net(made_net(), on_new_shape=policy, max_plans=2)


def fitted(policy: Any = "plan") -> ReplayModule:
    """A module of its own for each test, without plans of other shapes."""
    return copy.deepcopy(shared(policy))


def others_of(module: ReplayModule) -> list[Any]:
    """The plans beside the first."""
    found: list[Any] = module._shapes.others
    return found


def trained(module: nn.Module, epochs: int = 2) -> list[Any]:
    """Two epochs of batches of 8, 5 and 3 rows: all that there is to compare."""
    torch.manual_seed(11)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    seen: list[Any] = []
    for epoch in range(epochs):
        for index, count in enumerate((8, 5, 8, 3)):
            optimizer.zero_grad()
            loss = module(rows_of(count, 10 * epoch + index))
            loss.backward()
            seen += [loss.detach().clone(), *(p.grad.clone() for p in module.parameters())]  # type: ignore[union-attr]
            optimizer.step()
            seen += [v.clone() for v in module.state_dict().values()]
    seen.append(torch.get_rng_state())
    return seen


def one_step(module: nn.Module, *args: Any, **kwargs: Any) -> list[torch.Tensor | None]:
    """Loss, gradients, buffers and random state of one step."""
    torch.manual_seed(7)
    module.zero_grad(set_to_none=True)
    loss = module(*args, **kwargs)
    loss.backward()
    grads = [None if p.grad is None else p.grad.clone() for p in module.parameters()]
    return [loss.detach(), *grads, *(b.clone() for b in module.buffers()), torch.get_rng_state()]


def lines_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the user would see on stderr."""
    return [r.getMessage() for r in caplog.records if r.name == LOGGER and r.levelno >= 30]


def all_equal(one: list[Any], other: list[Any]) -> bool:
    """Whether two lists of tensors, or None, are the same."""
    return len(one) == len(other) and all(
        a is b or (a is not None and b is not None and torch.equal(a, b))
        for a, b in zip(one, other, strict=True)
    )
