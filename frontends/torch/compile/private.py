"""The one file of torch.compile's front end that touches PyTorch's private interfaces.

A partitioner gets the joint graph of a forward and its backward from AOTAutograd and returns two
modules. How inputs and outputs of these are told apart is AOTAutograd's convention, read here.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from ....solver.errors import CaptureError, LowtideError
from ..export import check_version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

try:
    from torch._dynamo.exc import BackendCompilerFailed as _BackendFailed
    from torch._functorch import config as _config
    from torch._functorch import partitioners as _partitioners
    from torch._functorch._aot_autograd import descriptors as _descriptors
    from torch._functorch._aot_autograd import utils as _utils
    from torch._functorch.compile_utils import fx_graph_cse as _cse

    _is_tangent: Callable[[fx.Node], bool] = _utils._is_tangent
    _is_primal: Callable[[fx.Node], bool] = _utils._is_primal
    _is_forward_seed: Callable[[fx.Node], bool] = _utils._is_fwd_seed_offset
    _is_backward_seed: Callable[[fx.Node], bool] = _utils._is_bwd_seed_offset
    _saved_desc: Any = _descriptors.SavedForBackwardsAOTOutput
    # Only where tensors can be saved without version check.
    _saved_desc_unchecked: Any = getattr(
        _descriptors, "SavedForBackwardsNoVcCheckAOTOutput", _saved_desc
    )
    _default_partition: Any = _partitioners.default_partition
    _own_partition: Any = _partitioners.min_cut_rematerialization_partition
    _missing = ""
except (ImportError, AttributeError) as error:  # pragma: no cover - other versions of PyTorch
    _missing = str(error)

UNCHECKED = "saved_tensor_with_no_vc_check"


def check_partitioners() -> None:
    """Refuse a PyTorch whose partitioners were never tried.

    Raises
    ------
    CaptureError
        If the version is outside the supported ones, or lacks what is needed.
    """
    check_version()
    if _missing:
        raise CaptureError(
            f"PyTorch {torch.__version__} lacks an interface of torch.compile's partitioners: "
            f"{_missing}"
        )


@dataclass(frozen=True)
class Ends:
    """Inputs and outputs of a joint graph.

    Attributes
    ----------
    primals
        Placeholders of the forward: parameters, buffers, inputs, and its random offsets.
    tangents
        Placeholders of the backward.
    outputs, gradients
        Results of the forward and of the backward: nodes, or None.
    output_descs, gradient_descs
        What PyTorch says of each.
    """

    primals: tuple[fx.Node, ...]
    tangents: tuple[fx.Node, ...]
    outputs: tuple[Any, ...]
    gradients: tuple[Any, ...]
    output_descs: tuple[Any, ...]
    gradient_descs: tuple[Any, ...]


def ends_of(graph: fx.Graph, num_fwd_outputs: int) -> Ends:
    """Sort the inputs and outputs of a joint graph.

    Raises
    ------
    CaptureError
        If there is a placeholder of a kind that is not known.
    """
    placeholders = graph.find_nodes(op="placeholder")
    (end,) = graph.find_nodes(op="output")
    results = pytree.arg_tree_leaves(*end.args)
    descs = pytree.arg_tree_leaves(end.meta.get("desc", [None] * len(results)))
    primals = [n for n in placeholders if _is_primal(n)]
    seeds = [n for n in placeholders if _is_forward_seed(n)]
    tangents = [n for n in placeholders if _is_tangent(n)]
    late_seeds = [n for n in placeholders if _is_backward_seed(n)]
    known = {*primals, *seeds, *tangents, *late_seeds}
    for node in placeholders:
        if node not in known or not isinstance(node.meta.get("val"), torch.Tensor):
            raise CaptureError(
                f"torch.compile: the joint graph has the input {node.name}, which is not a plain "
                "tensor of static shape: compile with dynamic=False"
            )
    return Ends(
        (*primals, *seeds),
        (*tangents, *late_seeds),
        tuple(results[:num_fwd_outputs]),
        tuple(results[num_fwd_outputs:]),
        tuple(descs[:num_fwd_outputs]),
        tuple(descs[num_fwd_outputs:]),
    )


def written_inputs(ends: Ends) -> set[fx.Node]:
    """Inputs whose new values are results of the forward, to be copied into them after it."""
    written = {getattr(desc, "mutated_input", None) for desc in ends.output_descs} - {None}
    return {node for node in ends.primals if node.meta.get("desc") in written}


def merge_equal_nodes(module: fx.GraphModule) -> None:
    """Remove dead nodes and compute equal ones once, as PyTorch's own partitioner begins."""
    module.graph.eliminate_dead_code()
    module.graph = _cse(module.graph)


def saved_desc(place: int, node: fx.Node) -> Any:
    """What PyTorch says of the result of a forward that is saved for the backward."""
    return (_saved_desc_unchecked if node.meta.get(UNCHECKED) else _saved_desc)(place)


def default_partition(
    module: fx.GraphModule, inputs: Sequence[Any], **kwargs: Any
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """PyTorch's own split without recomputation, for graphs that have no backward to plan."""
    forward, backward = _default_partition(module, inputs, **kwargs)
    return forward, backward


def own_partition(
    module: fx.GraphModule, inputs: Sequence[Any], share: float, **kwargs: Any
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """PyTorch's split under its own `activation_memory_budget`; the joint graph stays as it is."""
    twin = fx.GraphModule(module, copy.deepcopy(module.graph))
    with _config.patch(activation_memory_budget=share):
        forward, backward = _own_partition(twin, inputs, **kwargs)
    return forward, backward


def copy_of(module: fx.GraphModule) -> fx.GraphModule:
    """A graph of dynamo's to compile: inductor changes what it gets.

    What dynamo notes beside the graph goes with it: which inputs are parameters, whose memory does
    not move. PyTorch's partitioner saves those instead of views of them.
    """
    twin = copy.copy(module)
    twin.graph = copy.deepcopy(module.graph)
    for name in ("_param_name_to_source", "_source_to_user_stacks"):
        if hasattr(module, name):
            setattr(twin, name, getattr(module, name))
    for old, new in zip(module.graph.nodes, twin.graph.nodes, strict=True):
        if hasattr(old, "_dynamo_source"):
            new._dynamo_source = old._dynamo_source
    return twin


@contextlib.contextmanager
def let_through() -> Iterator[None]:
    """Meanwhile, an error of ours leaves dynamo as it is, with its own text and attributes.

    Dynamo wraps what a backend raises, under the whole of its traceback, but for its own wrapper
    (PyTorch 2.11 to 2.14: `except ShortenTraceback: raise`). So the error becomes both: who expects
    `InfeasibleError` catches it, and who expects `BackendCompilerFailed` does, too.
    """
    try:
        yield
    except _BackendFailed:
        raise
    except LowtideError as raised:
        error, kind = raised, type(raised)
        # Without the advice that dynamo adds for errors of compilers.
        own = {"__module__": kind.__module__, "__str__": lambda self: str(error)}
        both = type(kind.__name__, (kind, _BackendFailed), own)
        shown: Any = both.__new__(both, *error.args)
        shown.__dict__.update(
            error.__dict__,
            backend_name="lowtide",
            inner_exception=error,
            first_useful_frame=inspect.currentframe(),  # dynamo drops the frames before it
            _torch_dynamo_tracer_output=None,
        )
        raise shown from None


def prefers_channels_last(module: fx.GraphModule) -> bool:
    """Whether inductor lays what convolutions read out with channels last."""
    from torch._inductor.graph import GraphLowering

    decide: Callable[..., bool] = GraphLowering.decide_layout_opt
    return decide(module, is_inference=False)


def is_mutable(node: fx.Node) -> bool:
    """Whether a node writes into one of its arguments."""
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and bool(target._schema.is_mutable)


def is_late(node: fx.Node) -> bool:
    """Whether the tracer met a node during backward."""
    return node.meta.get("partitioner_tag") in ("is_backward", "must_be_in_backward")


def is_part(node: fx.Node) -> bool:
    """Whether a node picks one of several results of another."""
    return node.op == "call_function" and node.target is operator.getitem
