"""What the C library's allocator does with large blocks, where it can be told.

By default glibc learns from a large block that is freed: up to that size (32 MB at most) later ones
come from the heap, where they leave holes between small objects, and memory that one upload has
needed stays with the process. And it gives the top of the heap back to the system as soon as 128 KiB
are free there, only to ask for it again with the next answer of 64 KiB.
"""

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""As in glibc's ``malloc.h``."""

LARGE = 256 * 1024
"""Bytes from which on a block has pages of its own, which go back to the system when it is freed."""

KEPT = 4 * 1024 * 1024
"""Bytes at the top of the heap that are kept for what comes next."""


def tune() -> bool:
    """Set both for this process; whether the C library knows of them (musl's does not)."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    done = [mallopt(_M_MMAP_THRESHOLD, LARGE), mallopt(_M_TRIM_THRESHOLD, KEPT)]
    return all(done)
