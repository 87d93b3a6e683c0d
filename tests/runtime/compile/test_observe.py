"""The peak of a compiled step, followed through the program that the compiler wrote."""

from __future__ import annotations

import logging
import types
from typing import TYPE_CHECKING, Any

import pytest
import torch

from lowtide.frontends.torch.costs.meter import measure_peak
from lowtide.runtime.compile import observe
from lowtide.runtime.compile.observe import Compiled, Watch
from lowtide.runtime.compile.workspaces import workspace_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:.*script_method.*:DeprecationWarning"),  # inductor's imports
]

# What inductor writes, in small: two matrix products, one buffer reused, one view, one library
# call that makes its own result.
HEAD = """
import torch
from torch._inductor.select_algorithm import extern_kernels
empty_strided_cpu = torch._C._dynamo.guards._empty_strided_cpu
reinterpret_tensor = torch._C._dynamo.guards._reinterpret_tensor
assert_size_stride = torch._C._dynamo.guards.assert_size_stride

def cpp_fused_tanh_0(*buffers):
    buffers[-1].data_ptr()  # a fake tensor has none
    buffers[-1].fill_(0.5)

class Launcher:
    run = staticmethod(cpp_fused_tanh_0)

added_by_hand_0 = Launcher()

class Runner:
    def __init__(self, partitions):
        self.partitions = partitions
"""
FORWARD = """
    def call(self, args):
        primals_1, primals_2 = args
        args.clear()
        assert_size_stride(primals_1, (64, 32), (32, 1))
        buf0 = empty_strided_cpu((64, 32), (32, 1), torch.float32)
        extern_kernels.mm(primals_1, primals_2, out=buf0)
        buf1 = empty_strided_cpu((64, 32), (32, 1), torch.float32)
        cpp_fused_tanh_0(buf0, buf1)
        buf2 = reinterpret_tensor(buf0, (32, 64), (64, 1), 0); del buf0  # reuse
        cpp_fused_tanh_0(buf1, buf2)
        buf3 = empty_strided_cpu((), (), torch.float32)
        cpp_fused_tanh_0(buf2, buf3)
        del buf2
        return (buf3, primals_1, primals_2, buf1)
runner = Runner(partitions=[])
call = runner.call
"""
BACKWARD = """
    def call(self, args):
        primals_1, primals_2, buf1, tangents_1 = args
        args.clear()
        buf0 = buf1; del buf1  # reuse
        added_by_hand_0.run(tangents_1, buf0)
        del tangents_1
        buf2 = torch.ops.aten.sort.stable(buf0, stable=False, dim=1)
        buf3 = buf2[0]
        buf4 = buf2[1]
        del buf2, buf4
        buf5 = empty_strided_cpu((32, 32), (32, 1), torch.float32)
        extern_kernels.mm(reinterpret_tensor(primals_1, (32, 64), (1, 32), 0), buf3, out=buf5)
        del buf0, buf3
        return (None, buf5)
runner = Runner(partitions=[])
call = runner.call
"""


def program(source: str) -> Callable[[list[Any]], Any]:
    """The `call` of a program's text."""
    names: dict[str, Any] = {}
    exec(HEAD + source, names)
    found: Callable[[list[Any]], Any] = names["call"]
    return found


def watch_of(early: Any, late: Any) -> Watch:
    """As if inductor had just compiled the two."""
    x, w = torch.empty(64, 32), torch.empty(32, 32)
    shown = observe._sizes
    watch = Watch()
    watch.forward = Compiled((shown(x), shown(w)), types.SimpleNamespace(current_callable=early))
    late_inputs = (x, w, torch.empty(64, 32), torch.empty(()))
    watch.backward = Compiled(
        tuple(map(shown, late_inputs)), types.SimpleNamespace(current_callable=late)
    )
    return watch


def test_the_observed_peak_is_the_measured_one() -> None:
    """Run for real, the same program takes the same bytes; nothing is allocated to find out."""
    early, late = program(FORWARD), program(BACKWARD)
    x, w = torch.rand(64, 32), torch.rand(32, 32)

    def step() -> Any:
        loss, *saved = early([x, w])
        tangent = torch.ones(())
        gradients = late([*saved, tangent])
        return loss, tangent, gradients

    measured = measure_peak(step).peak_bytes
    watch = watch_of(early, late)
    cpu = torch.device("cpu")
    assert watch.peak_bytes(1, cpu) == measured
    again = measure_peak(lambda: watch.peak_bytes(1, cpu))  # workspaces are measured once
    assert again.result == measured
    assert again.peak_bytes < 1000
    assert watch.digest() == ""  # a program in no file


def test_a_program_that_cannot_be_followed_has_no_peak(caplog: pytest.LogCaptureFixture) -> None:
    """A compiled program that is not in Python is left alone, with a log line."""
    watch = watch_of(lambda args: args, program(BACKWARD))
    with caplog.at_level(logging.INFO, "lowtide"):
        assert watch.peak_bytes(1, torch.device("cpu")) is None
    assert "cannot be followed" in caplog.text
    assert Watch().peak_bytes(1, torch.device("cpu")) is None


def test_workspaces_are_what_a_call_takes_for_itself() -> None:
    """Results and arguments do not count; a call that cannot run alone counts nothing."""
    cpu = torch.device("cpu")
    a = torch.empty(32, 32)
    assert workspace_bytes("mm", torch.mm, (a, a), {}, cpu) == 0

    def greedy(x: torch.Tensor) -> torch.Tensor:
        return x.neg().neg()

    assert workspace_bytes("greedy", greedy, (a,), {}, cpu) == a.nbytes
    assert workspace_bytes("wrong", torch.mm, (a, torch.empty(5)), {}, cpu) == 0
