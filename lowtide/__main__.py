"""The command line: `lowtide ...` and `python -m lowtide ...`."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import FrameType

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Parameters
    ----------
    argv
        Arguments without the program's name; None takes those of the process.

    Returns
    -------
    int
        0 done; 1 failed check or unexpected error; 2 usage or bad input; 3 infeasible; 4 time
        limit, best plan written; 5 time limit, none found; 130 interrupted.
    """
    try:
        with _ending_as_interrupt():
            return _run(argv)
    except KeyboardInterrupt:
        with contextlib.suppress(OSError):
            print("lowtide: interrupted", file=sys.stderr)
        # Where Ctrl-C came while a string was evaluated (dataclasses do that), `python -m` would
        # end by the signal instead of with our code; another evaluation makes it forget.
        eval("None")
        return INTERRUPTED


@contextlib.contextmanager
def _ending_as_interrupt() -> Iterator[None]:
    """SIGTERM, as batch systems send it before they kill, does what Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_signal(number: int, frame: FrameType | None) -> None:
        signal.raise_signal(signal.SIGINT)

    previous = signal.signal(signal.SIGTERM, on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _run(argv: Sequence[str] | None) -> int:
    from .commands.app import app
    from .commands.terminal import complain, discard_stdout
    from .solver.errors import LowtideError

    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by who called: news would go to the other one
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        # Without arguments the help is the answer, not an error.
        result = app(args=arguments or ["--help"], prog_name="lowtide", standalone_mode=False)
        code = result if isinstance(result, int) else 0
        sys.stdout.flush()
    except BrokenPipeError:
        discard_stdout()
        return 0
    except LowtideError as error:
        if os.environ.get("LOWTIDE_DEBUG") == "1":
            raise
        complain(str(error))
        return error.exit_code
    except Exception as error:
        usage = getattr(error, "format_message", None)
        if usage is not None:
            complain(f"{usage()} (see {_help_of(error)})")
            return 2
        if os.environ.get("LOWTIDE_DEBUG") == "1":
            raise
        if _of_interrupt(error):
            raise KeyboardInterrupt from None
        complain(_unexpected(error))
        return 1
    if code == INTERRUPTED:
        raise KeyboardInterrupt
    return code


def _help_of(error: Exception) -> str:
    """The help command of the command that was used wrongly."""
    context = getattr(error, "ctx", None)
    return f"{context.command_path if context is not None else 'lowtide'} --help"


def _of_interrupt(error: BaseException | None) -> bool:
    """Whether Ctrl-C is behind an error: extension modules turn it into an `ImportError`."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _unexpected(error: Exception) -> str:
    """One line for an error that nobody foresaw."""
    from .solver.errors import text_of

    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    where = f" at {place.tb_frame.f_code.co_filename}:{place.tb_lineno}" if place else ""
    return (
        f"unexpected {type(error).__name__}: {text_of(error)}{where} "
        "(LOWTIDE_DEBUG=1 shows the traceback; please report it with `lowtide env`)"
    )


if __name__ == "__main__":
    sys.exit(main())
