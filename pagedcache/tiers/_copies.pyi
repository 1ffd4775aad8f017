from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

def copy_records(
    sources: Sequence[NDArray[np.uint8]], rows: ArrayLike, targets: Sequence[NDArray[np.uint8]], to: ArrayLike
) -> None: ...
