"""Types of NumPy arrays by what they hold, for annotations."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.int8]
Bools2 = npt.NDArray[np.bool_]  # in two dimensions
