import numpy as np
from numpy.typing import NDArray

def dequantize(
    type_name: str, data: NDArray[np.uint8], out: NDArray[np.float32], num_threads: int
) -> None: ...
