"""Warnings that point to the user's line, not into lowtide or the libraries that called it."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

_HERE = str(Path(__file__).absolute().parents[1])
_BETWEEN = ("torch", "accelerate", "transformers", "lightning", "pytorch_lightning")


def warn_user(text: str) -> None:
    """Warn about the line of the first caller that is none of lowtide's, or of a trainer's.

    Python does this itself from 3.12 on (`skip_file_prefixes`). A backward on a thread of PyTorch's
    has no such caller: then it is about the line that called.
    """
    inside = [_HERE + os.sep]
    for name in _BETWEEN:
        module = sys.modules.get(name)
        inside += [folder + os.sep for folder in getattr(module, "__path__", ())]
    frame, level = sys._getframe(1), 2
    while frame is not None and frame.f_code.co_filename.startswith(tuple(inside)):
        if frame.f_back is None:
            level = 2
            break
        frame, level = frame.f_back, level + 1
    warnings.warn(text, UserWarning, stacklevel=level)
