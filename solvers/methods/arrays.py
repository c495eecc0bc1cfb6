"""Arrays by what they hold, as signatures name them."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Index = NDArray[np.int64]

WIDTH = 8
"""Doubles that move together in a vector; see `lanes`."""
