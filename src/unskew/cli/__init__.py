"""The command line. An expected error prints one sentence and sets a non-zero exit code."""

from __future__ import annotations

import ctypes
import sys

_M_ARENA_MAX, _M_MMAP_THRESHOLD = -8, -3
"""Numbers of two options of the GNU C library's ``mallopt``."""
LARGE_BLOCK_BYTES = 4 * 2**20
"""Memory blocks of at least this size go back to the system as soon as they are freed. By default
the C library raises this limit to the largest block freed so far, which fragments the heap."""


def share_one_heap() -> None:
    """Make all threads allocate from one heap; call it before threads start.

    The GNU C library gives each thread a separate heap, and no thread reuses memory that another
    thread has freed. GPFedRec on ML-1M, the largest case, needs 3.6 GB with these allocator
    settings and 4.1 GB without. On systems with another C library, this function does nothing.
    """
    try:
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES)
    except (AttributeError, OSError, TypeError):
        return


def main() -> None:
    """Entry point of the ``unskew`` command."""
    share_one_heap()
    import typer

    from unskew.cli._commands import add_commands
    from unskew.cli._options import before_any_command
    from unskew.cli._output import print_logs, stderr
    from unskew.text import plain
    from unskew.types import UnskewError

    app = typer.Typer(
        name="unskew",
        help="Federated recommendation: train, compare, recommend, audit.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(before_any_command)
    print_logs()
    called = next((given for given in sys.argv[1:] if not given.startswith("-")), None)
    try:
        add_commands(app, called)
        app()
    except UnskewError as error:
        stderr.print(f"unskew: {plain(error)}")
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(0)
    except MemoryError as error:
        stderr.print(f"unskew: Memory is full ({error}); use smaller settings or fewer data.")
        sys.exit(2)
    except OSError as error:
        # A file or folder that cannot be read or written.
        where = "" if error.filename is None else f"{error.filename}: "
        reason = error.strerror or str(error)
        stderr.print(f"unskew: {where}{reason}; check the path and its permissions.")
        sys.exit(2)
