"""`torch.compile(model, backend=lowtide.backend(memory_budget="60%"))`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from ...frontends.torch.compile.private import let_through
from ...solver.arguments import checked_arguments
from ...solver.errors import InputError
from .partitioner import Partitioner
from .within import compile_within

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import fx

    from .planned import Planned

Compiler = Literal["inductor", "aot_eager"]


class Backend:
    """A backend of torch.compile that plans each training graph under a memory budget.

    `lowtide.backend` makes one. Graphs without a backward (inference, `torch.no_grad`) go to the
    compiler as they are.

    Attributes
    ----------
    partitioner
        What splits the joint graphs; it says what is guaranteed.
    """

    def __init__(
        self, partitioner: Partitioner, compiler: Compiler, options: Mapping[str, Any]
    ) -> None:
        if compiler not in ("inductor", "aot_eager"):
            raise InputError(f"compiler={compiler!r}: choose inductor or aot_eager")
        self.partitioner, self.compiler, self.options = partitioner, compiler, dict(options)
        partitioner.compiled = compiler == "inductor"

    @property
    def planned(self) -> list[Planned]:
        """Graph and plan of each joint graph so far."""
        return self.partitioner.planned

    def __call__(
        self,
        gm: fx.GraphModule,
        example_inputs: Sequence[Any],
        *,
        mode: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Callable[..., Any]:
        """Compile one graph; called by PyTorch with what torch.compile was given."""
        if self.compiler == "aot_eager":
            with let_through():
                if mode or options or self.options:
                    raise InputError("compiler='aot_eager' takes neither mode nor options")
                return self._uncompiled(gm, example_inputs)
        from torch._inductor import list_mode_options

        patches = {
            **(list_mode_options(mode) if mode else {}),
            **self.options,
            **(options or {}),
            "custom_partitioner_fn": self.partitioner,
        }
        return compile_within(gm, example_inputs, self.partitioner, patches)

    def _uncompiled(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        """The plan run operator by operator, without decompositions: for debugging."""
        from torch._dynamo.backends.common import aot_autograd
        from torch._functorch._aot_autograd.utils import make_boxed_func

        def interpret(part: fx.GraphModule, inputs: Sequence[Any]) -> Any:
            return make_boxed_func(part.forward)

        run: Any = aot_autograd(
            fw_compiler=interpret,
            bw_compiler=interpret,
            partition_fn=self.partitioner,
            keep_inference_input_mutations=True,
        )
        made: Callable[..., Any] = run(gm, example_inputs)
        return made


@checked_arguments
def backend(
    memory_budget: str | int,
    *,
    time_limit: float = 60.0,
    method: str = "auto",
    seed: int = 0,
    extra_resident_bytes: int = 0,
    reserve_bytes: int = 0,
    compiler: Compiler = "inductor",
    options: Mapping[str, Any] | None = None,
) -> Backend:
    """A backend for torch.compile whose backward recomputes what a memory budget asks for.

    Parameters
    ----------
    memory_budget, time_limit, method, seed, extra_resident_bytes, reserve_bytes
        As for `lowtide.partitioner` in its context.
    compiler
        What compiles the two halves. `aot_eager` runs them operator by operator, to debug.
    options
        For inductor, as torch.compile takes them.

    Raises
    ------
    InputError
        For a budget, method or compiler that does not exist. What a graph cannot have is raised at
        its first call: `InfeasibleError` for a budget below the smallest, `CaptureError` for
        symbolic sizes. Both are PyTorch's `BackendCompilerFailed`, too, so that they leave
        torch.compile as they are.

    Notes
    -----
    With inductor, plans are tried whose programs are followed, without running or compiling a
    kernel; the first program within the budget is compiled (`runtime/compile/ladder.py`). First
    come the splits of PyTorch's own partitioner that recompute no matrix product, convolution or
    attention: where the budget has room for one of these, it is PyTorch's own program that runs.

    Guaranteed: the measured peak of what is inside a compiled graph is within the budget; and it
    never rises as the budget falls, for the same graph, settings and cache folder
    (`LOWTIDE_CACHE_DIR`), in which each plan is made once. A refusal names a budget that is met.

    Not guaranteed: that the peak is close to the budget (between two plans there are none, often
    the size of a tensor), or that no smaller budget than the refusal's could be met. Which plan is
    faster is predicted before inductor fuses: a smaller budget can run faster than a larger one. A
    refusal is remembered while the process lives only, so close to the smallest budget, where
    solving ends by the time limit, another process may find what this one did not. Not counted
    are: what runs outside of a graph (a loss in eager mode, other graphs of a model with graph
    breaks, the optimizer), and memory that libraries take around PyTorch's allocator. A program
    that is not in Python (`cpp_wrapper`, CUDA graphs) cannot be followed: a log line says so, and
    its peak is a prediction. Where inductor decides by running kernels (`max_autotune`), each plan
    is followed with its kernels, which takes as long as compiling it.

    Examples
    --------
    >>> model = torch.compile(model, backend=lowtide.backend("60%"))    # doctest: +SKIP
    """
    partitioner = Partitioner(
        memory_budget,
        time_limit=time_limit,
        method=method,
        seed=seed,
        extra_resident_bytes=extra_resident_bytes,
        reserve_bytes=reserve_bytes,
    )
    return Backend(partitioner, compiler, options or {})
