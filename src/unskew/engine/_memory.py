"""Return freed memory to the system."""

from __future__ import annotations

import ctypes


def return_freed() -> None:
    """Return memory that the GNU C library keeps after it was freed, in pieces too small for the
    large tables that a server needs next. Does nothing with other C libraries."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError, TypeError):
        return
