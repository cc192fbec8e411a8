"""What the C library keeps of what has been freed."""

from __future__ import annotations

import ctypes


def return_freed() -> None:
    """Give freed memory back to the system: the GNU C library keeps it, in pieces that are too
    small for the whole tables a server needs next. (Elsewhere nothing happens.)"""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError, TypeError):
        return
