"""Which names the user's code looks up when the step runs: what is guarded outside of the batch.

A holder (dict, list, namespace, class, config) may have hundreds of numbers of which the step reads
three, and counters beside them. So only those count whose names stand in code that ran.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

# libraries that do not read the user's numbers by name, and do not change their own
_TRAINERS = {"accelerate", "lightning", "lightning_fabric", "pytorch_lightning"}
SILENT = sys.stdlib_module_names | _TRAINERS | {"torch", "numpy", "lowtide"}
LIBRARIES = SILENT | {"transformers"}
# what a function of the user's runs; the last ones are not met in a forward
DERIVATIVES = ("forward", "setup_context", "backward", "vjp")


@dataclass(frozen=True)
class Reads:
    """What the code that ran looks up.

    Attributes
    ----------
    names, words, dynamic, whole, opened, computed, read, written, own, users,
    environment
        As in `Uses`.
    modules
        Module name to the globals that its functions look up.
    changing
        Labels of numbers that the step itself changes: counters. They are not guarded.
    """

    names: frozenset[str] = frozenset()
    words: frozenset[str] = frozenset()
    dynamic: frozenset[str] = frozenset()
    whole: frozenset[str] = frozenset()
    opened: frozenset[str] = frozenset()
    computed: frozenset[str] = frozenset()
    read: frozenset[tuple[str, Any]] = frozenset()
    written: frozenset[tuple[str, Any]] = frozenset()
    own: frozenset[tuple[str, str]] = frozenset()
    users: frozenset[str] = frozenset()
    environment: frozenset[str] = frozenset()
    modules: Mapping[str, frozenset[str]] = field(default_factory=dict)
    changing: frozenset[str] = frozenset()

    def without(self, labels: frozenset[str]) -> Reads:
        """The same, and `labels` are of counters."""
        return replace(self, changing=self.changing | labels)
