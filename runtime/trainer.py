"""Puts a replayed module into a Hugging Face `Trainer`.

The trainer decides how its model is called: which columns of a batch it gets, whether the number of
items comes along, under which autocast. So the first training batch is followed up to the call.
"""

from __future__ import annotations

import contextlib
import random
import sys
from typing import TYPE_CHECKING, Any

from ..frontends.torch.generators import random_states, set_random_states
from ..solver.arguments import checked_arguments
from ..solver.errors import InputError
from .plans.fit import fit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .module import ReplayModule


@checked_arguments
def fit_trainer(trainer: Any, *, memory_budget: str | int, **options: Any) -> ReplayModule:
    """Let a `transformers.Trainer` train under a memory budget.

    Call it once, between making the trainer and `trainer.train()`. Random state is left as it was.

    Parameters
    ----------
    trainer
        The trainer, or one of a class of yours.
    memory_budget, options
        As for `fit`.

    Returns
    -------
    ReplayModule
        The module that is now `trainer.model`. It saves and loads as the original.

    Raises
    ------
    InputError
        If the trainer's settings exclude a plan, or it has no training batch.
    CaptureError, InfeasibleError
        As `fit` does.
    """
    _refuse(trainer)
    model = trainer.model
    model.train()
    args, kwargs = _first_call(trainer)
    with trainer.accelerator.autocast():
        module = fit(model, _as_batch(args, kwargs), memory_budget=memory_budget, **options)
    trainer.model = trainer.model_wrapped = trainer.callback_handler.model = module
    return module


def _refuse(trainer: Any) -> None:
    """Refuse settings with which the step that is trained is not the one that is captured."""
    arguments = trainer.args
    if getattr(trainer, "model_init", None) is not None:
        raise InputError("model_init makes a new model in train(): give the trainer a model=")
    if getattr(trainer.model, "_is_accelerate_prepared", False):
        raise InputError("the trainer has trained already: call fit_trainer before train()")
    if getattr(arguments, "gradient_checkpointing", False):
        raise InputError(
            "gradient_checkpointing=True fixes what is recomputed, which the plan is to decide: "
            "turn it off"
        )
    if getattr(arguments, "torch_compile", False):
        raise InputError("torch_compile=True: a replayed step is not compiled by the trainer")
    if getattr(arguments, "n_gpu", 1) > 1:
        raise InputError(
            "the trainer would copy the model to several devices (nn.DataParallel): start one "
            "process a device (torchrun), or show it one device (CUDA_VISIBLE_DEVICES)"
        )


def _first_call(trainer: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What the trainer calls its model with in the first step."""
    arguments = trainer.args
    with _random_state_kept():
        loader = trainer.get_train_dataloader()
        batches = iter(loader)
        samples, items = trainer.get_batch_samples(
            batches, arguments.gradient_accumulation_steps, arguments.device
        )
        # The loader told the gradient state that it runs, and would have to run dry to take it back
        with contextlib.suppress(AttributeError):
            loader.end()
        if not samples:
            raise InputError("the trainer has no training batch: is the dataset empty?")
        inputs = trainer._prepare_inputs(samples[0])
        try:
            trainer.compute_loss(_Witness(trainer.model), inputs, num_items_in_batch=items)
        except _Called as call:
            return call.positional, call.keywords
    raise InputError("the trainer's compute_loss does not call the model it is given")


def _as_batch(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The call in the form that `fit` takes."""
    if args and kwargs:
        raise InputError(
            "compute_loss calls the model with positional and keyword arguments: use one kind"
        )
    return args or kwargs


class _Called(Exception):
    """Ends a step at the call of the model."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.positional, self.keywords = args, kwargs


class _Witness:
    """Stands for a model until it is called."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise _Called(args, kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


@contextlib.contextmanager
def _random_state_kept() -> Iterator[None]:
    """Put back what samplers and collators drew from PyTorch's, Python's and NumPy's generators."""
    numpy = sys.modules.get("numpy")
    torch_states, python_state = random_states(), random.getstate()
    numpy_state = None if numpy is None else numpy.random.get_state()
    try:
        yield
    finally:
        set_random_states(torch_states)
        random.setstate(python_state)
        if numpy is not None and numpy_state is not None:
            numpy.random.set_state(numpy_state)
