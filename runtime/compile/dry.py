"""Inductor without its kernels: the host program that it writes, in a second instead of a minute.

Inductor decides on buffers before it compiles a kernel, and the program says all of it. Kernels are
compiled when that program is loaded, by an object that the program makes for itself: that is what
is taken away here. What is compiled so can be followed, not run, and goes into no cache.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any
from unittest import mock

from torch._inductor import async_compile
from torch._inductor import config as inductor_config

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

# Parts of the compiled step that are kept between processes.
_NO_CACHES = {"fx_graph_cache": False, "fx_graph_remote_cache": False}
_MEASURING = ("max_autotune", "max_autotune_gemm", "benchmark_fusion", "benchmark_combo_kernel")


class Nothing:
    """A kernel or a check that does nothing: results are in buffers that were made before."""

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Nothing."""

    run = __call__


class _NoKernels:
    """Stands for `AsyncCompile`, the class and its objects: every kernel is `Nothing`."""

    def __call__(self) -> _NoKernels:
        return self

    def __getattr__(self, language: str) -> Callable[..., Nothing]:
        if language.startswith("__"):
            raise AttributeError(language)
        return lambda *args, **kwargs: Nothing()


def setting(name: str, patches: Mapping[str, Any]) -> bool:
    """Whether a part of inductor's configuration is on, with changes to it."""
    return bool(patches[name] if name in patches else getattr(inductor_config, name, False))


def runs_kernels(patches: Mapping[str, Any]) -> bool:
    """Whether inductor, with changes to its configuration, decides by running kernels."""
    return any(setting(name, patches) for name in _MEASURING)


@contextlib.contextmanager
def no_kernels() -> Iterator[None]:
    """Meanwhile, kernels are not compiled and caches are left alone."""
    with (
        mock.patch.object(async_compile, "AsyncCompile", _NoKernels()),
        inductor_config.patch(_NO_CACHES),
    ):
        yield
