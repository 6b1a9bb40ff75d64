"""Giving pages of mapped files back, once what they hold has been copied into another form."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray


def release_pages(data: NDArray[np.uint8]) -> None:
    """Let the system take back the whole pages that `data` covers, where it is a view of a mapped file.

    They count as this process's memory no longer, and are read from the file again if they are touched.
    Memory that is not a mapped file is left alone.
    """
    file_map = _map_of(data)
    if file_map is None or not hasattr(file_map, "madvise"):  # not every system has it
        return
    offset = data.ctypes.data - np.frombuffer(file_map, np.uint8).ctypes.data
    begin = -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (offset + data.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if end > begin:
        file_map.madvise(mmap.MADV_DONTNEED, begin, end - begin)


def _map_of(data: NDArray[np.uint8]) -> mmap.mmap | None:
    base: Any = data
    while isinstance(base, np.ndarray | memoryview):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    return base if isinstance(base, mmap.mmap) else None
