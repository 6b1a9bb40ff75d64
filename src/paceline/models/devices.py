"""Accelerators: what is set before a model runs on one, and how much memory it has.

A row's result has the same bits for any batch there too, for the same reason as on a CPU
(`kernels/reference.py`): every operator that adds up is called on one shape, whatever the batch, and a
library takes the same kernel for the same shape, type and alignment. cuBLAS adds up in one order for one
shape on one GPU as long as one stream is used (https://docs.nvidia.com/cuda/cublas/#results-reproducibility),
so nothing here opens another. `python -m verify.cuda` checks that on the GPU at hand.
"""

from __future__ import annotations

import torch

from paceline.config.memory import available_memory


def prepare(device: torch.device) -> None:
    """Make products of matrices on this device float32 throughout.

    With TF32, which other code in the process may have switched on, factors would be rounded to ten bits.
    """
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = False


def free_memory(device: torch.device) -> int:
    """Return the bytes that can be allocated on a device now."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free)
    return available_memory()
