"""Threads of the command share one heap."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

_COUNT_HEAPS = """
import ctypes, sys, threading
from unskew.cli import share_one_heap

if sys.argv[1] == "shared":
    share_one_heap()
together = threading.Barrier(4)

def allocate():
    kept = [bytearray(50_000) for _ in range(100)]
    together.wait()

threads = [threading.Thread(target=allocate) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
libc = ctypes.CDLL(None)
libc.fdopen.restype = ctypes.c_void_p
out = ctypes.c_void_p(libc.fdopen(1, b"w"))
libc.malloc_info(0, out)
libc.fflush(out)
"""


def _heaps(how: str) -> int:
    done = subprocess.run([sys.executable, "-c", _COUNT_HEAPS, how], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.count("<heap nr=")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only the GNU C library has heaps")
def test_threads_of_the_command_share_one_heap() -> None:
    assert _heaps("apart") > 1
    assert _heaps("shared") == 1
