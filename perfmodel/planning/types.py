"""Kinds of arrays."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int_]
"""Numbers of rows."""
Flags = NDArray[np.bool_]
