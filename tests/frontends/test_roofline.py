"""Roofline times: monotone, right counts of arithmetic, no run."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
import torch

from lowtide.frontends.torch.costs import machine as machine_module
from lowtide.frontends.torch.costs.machine import PRESETS, Machine
from lowtide.frontends.torch.costs.roofline import call_bytes, call_flops, call_time, roofline_times
from lowtide.solver.errors import InputError

from .one_op import Step

if TYPE_CHECKING:
    from pathlib import Path

    from lowtide.frontends.torch.program import Call, ValueMeta

aten: Any = torch.ops.aten
CPU = PRESETS["cpu"]


def _one(target: Any, *args: Any) -> tuple[Call, list[ValueMeta]]:
    """A call on tensors and literals."""
    step = Step()
    refs = [step.give(a) if isinstance(a, torch.Tensor) else a for a in args]
    step.add(target, *refs)
    return step.calls[0], step.metas


@pytest.mark.parametrize(
    "make",
    [
        lambda n: _one(aten.mm.default, torch.rand(n, n), torch.rand(n, n)),
        lambda n: _one(aten.add.Tensor, torch.rand(n, n), torch.rand(n, n)),
        lambda n: _one(aten.gelu.default, torch.rand(n, n)),
        lambda n: _one(
            aten._scaled_dot_product_flash_attention_for_cpu.default,
            *(torch.rand(1, 2, n, 8), torch.rand(1, 2, n, 8), torch.rand(1, 2, n, 8)),
        ),
    ],
    ids=["mm", "add", "gelu", "attention"],
)
@pytest.mark.parametrize("name", PRESETS)
def test_larger_takes_longer(make: Any, name: str) -> None:
    """Times grow with the size, on every preset, and never fall below the overhead."""
    machine = Machine.named(name)
    times = []
    for n in (8, 64, 128, 256):
        call, metas = make(n)
        times.append(call_time(call, metas, machine))
    assert times == sorted(times)
    assert times[0] >= machine.overhead_ns
    assert times[-1] > times[0]


def test_flops_of_products_and_convolutions() -> None:
    """Two operations for each multiply-add, groups counted."""
    assert call_flops(*_one(aten.mm.default, torch.rand(3, 5), torch.rand(5, 7))) == 2 * 3 * 5 * 7
    image, weight = torch.rand(2, 8, 6, 6), torch.rand(16, 2, 3, 3)
    shape = ([1, 1], [1, 1], [1, 1], False, [0, 0], 4)
    forward = call_flops(*_one(aten.convolution.default, image, weight, None, *shape))
    assert forward == 2 * (2 * 16 * 6 * 6) * (2 * 3 * 3)
    for mask, factor in (([True, True, False], 2), ([False, True, True], 1)):
        call = _one(
            aten.convolution_backward.default,
            *(torch.rand(2, 16, 6, 6), image, weight, [16], *shape, mask),
        )
        assert call_flops(*call) == factor * forward


def test_flops_of_attention_on_cpu() -> None:
    """Two products forward; backward repeats one and adds four."""
    q, k, v = (torch.rand(2, 3, 16, 8) for _ in range(3))
    product = 2 * 2 * 3 * 16 * 16 * 8
    name = "_scaled_dot_product_flash_attention_for_cpu"
    forward = _one(getattr(aten, name).default, q, k, v)
    assert call_flops(*forward) == 2 * product
    out, lse = getattr(aten, name).default(q, k, v)
    backward = _one(
        getattr(aten, f"{name}_backward").default, *(out, q, k, v, out, lse, 0.0, False)
    )
    assert call_flops(*backward) == 5 * product


def test_bytes_count_each_value_once() -> None:
    """A value read twice counts once, broadcast elements once, a table only where it is read."""
    x = torch.rand(10, 10)
    step = Step()
    ref = step.give(x)
    step.add(aten.mul.Tensor, ref, ref)
    assert call_bytes(step.calls[0], step.metas) == 2 * 400
    assert call_bytes(*_one(aten.add.Tensor, x, torch.rand(10).expand(10, 10))) == 2 * 400 + 40
    table, index = torch.rand(1000, 4), torch.zeros(3, dtype=torch.long)
    assert call_bytes(*_one(aten.embedding.default, table, index)) == 48 + 48 + 24


def test_uncountable_flops_are_zero() -> None:
    """Ops without a formula are bound by their traffic."""
    call, metas = _one(aten.add.Tensor, torch.rand(1000, 1000), torch.rand(1000, 1000))
    assert call_flops(call, metas) == 0
    traffic = 3 * 4_000_000 / CPU.bandwidth * 1e9
    assert call_time(call, metas, CPU) == CPU.overhead_ns + math.ceil(traffic)


def test_reduced_precision_is_for_convolutions() -> None:
    """On a machine with TF32, float32 convolutions use it by default and products do not."""
    machine = Machine("toy", {"float32": 1e9, "tf32": 1e12}, bandwidth=1e15, overhead_ns=0)
    image, weight = torch.rand(1, 4, 8, 8), torch.rand(4, 4, 3, 3)
    shape = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    conv = call_time(*_one(aten.convolution.default, image, weight, None, *shape), machine)
    matrix = call_time(*_one(aten.mm.default, torch.rand(64, 64), torch.rand(64, 64)), machine)
    assert conv < 1_000
    assert matrix == pytest.approx(2 * 64**3, rel=0.01)


def test_types_without_a_rate_run_as_float32() -> None:
    """A data type that the machine does not list falls back to float32."""
    volta = PRESETS["v100-16gb"]
    assert volta.rate(torch.bfloat16) == volta.flops["float32"]
    assert volta.rate(torch.float16) > volta.rate(torch.float32)


def test_no_tensor_is_needed() -> None:
    """A step of 2 TB parameters is estimated from shapes."""
    step = Step()
    x, w = (step.give(torch.empty(1 << 19, 1 << 20, device="meta")) for _ in range(2))
    step.add(aten.add.Tensor, x, w)
    captured = step.captured()
    assert roofline_times(captured, "h100") == [
        PRESETS["h100"].overhead_ns + math.ceil(3 * (1 << 41) / 3.35e12 * 1e9)
    ]


def test_unknown_preset_is_refused() -> None:
    """The error lists the presets."""
    with pytest.raises(InputError, match="a100-80gb"):
        Machine.named("a100")


def test_measured_machine_is_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rates are plausible, and measured once; a damaged file is measured again."""
    monkeypatch.setenv("LOWTIDE_CACHE_DIR", str(tmp_path))
    first = Machine.measured("cpu")
    assert 1e8 < first.bandwidth < 1e13
    assert first.flops["float32"] > 1e8
    assert 100 <= first.overhead_ns < 1_000_000
    assert Machine.measured("cpu") == first
    (path,) = tmp_path.glob("*.json")
    path.write_text("{")
    monkeypatch.setattr(machine_module, "_measure", lambda *_: PRESETS["cpu"])
    assert Machine.measured("cpu") == PRESETS["cpu"]
    with pytest.raises(InputError, match="meta"):
        Machine.measured("meta")


def test_infinite_rate_survives_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose elementwise functions are free is read back as such."""
    monkeypatch.setenv("LOWTIDE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(machine_module, "_measure", lambda *_: PRESETS["h200"])
    Machine.measured("cpu")
    assert math.isinf(Machine.measured("cpu").elementwise)
