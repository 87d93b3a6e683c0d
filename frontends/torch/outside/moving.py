"""What a step may leave as another: tensors of a trace, generators of random numbers, iterators."""

from __future__ import annotations

import pickle
import random
from typing import Any

import numpy as np
import torch

from .. import export
from .iterators import is_iterator

_Random: Any = random
_Numpy: Any = np.random
# the process-wide ones, which are looked at by themselves
_GLOBAL = (_Random._inst, _Numpy.mtrand._rand)


def is_moving(item: Any) -> bool:
    """Whether something is of a kind that running a step may change without a trace of it."""
    return is_traced(item) or is_generator(item) or is_iterator(item)


def is_traced(item: Any) -> bool:
    """Whether something is a tensor that only a trace has."""
    return isinstance(item, torch.Tensor) and not export.is_plain(item)


def is_generator(item: Any) -> bool:
    """Whether something draws random numbers with a state of its own, outside of PyTorch."""
    kinds = (random.Random, np.random.Generator, np.random.RandomState)
    return isinstance(item, kinds) and not any(item is known for known in _GLOBAL)


def state_of(generator: Any) -> bytes:
    """The state of a generator; empty if it has none, as `random.SystemRandom`."""
    try:
        if isinstance(generator, random.Random):
            return pickle.dumps(generator.getstate())
        if isinstance(generator, np.random.Generator):
            return pickle.dumps(generator.bit_generator.state)
        return pickle.dumps(generator.get_state(legacy=False))
    except NotImplementedError:
        return b""


def put_back(generator: Any, state: bytes) -> None:
    """Set a generator to a state that `state_of` gave."""
    known = pickle.loads(state)
    if isinstance(generator, random.Random):
        generator.setstate(known)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = known
    else:
        generator.set_state(known)
