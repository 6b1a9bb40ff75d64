"""Giving memory back to the system: pages of mapped files that were copied, and what the allocator keeps."""

from __future__ import annotations

import ctypes
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


def release_free_memory() -> None:
    """Let the system have the memory of weights that were dropped, or of what loading them took beside them.

    The C library keeps most of what is freed inside its heap for later (63 of 78 MB, in a test). Only glibc
    can be asked to give it back (malloc_trim(3)); elsewhere this does nothing.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))


def _map_of(data: NDArray[np.uint8]) -> mmap.mmap | None:
    base: Any = data
    while isinstance(base, np.ndarray | memoryview):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    return base if isinstance(base, mmap.mmap) else None
