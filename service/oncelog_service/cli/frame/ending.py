"""How the command line ends: whatever goes wrong is a sentence on stderr and an exit code, never a library's wall of text."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import typer

from oncelog_service.cli.frame.codes import BUG, ERROR, INTERRUPTED, OK, USAGE
from oncelog_service.cli.frame.lazy import UsageError
from oncelog_service.cli.frame.words import meant

EXTRA = "the commands and the service need: pip install 'oncelog[service]'"


_WRONG = {
    "int_parsing": "is no whole number",
    "int_parsing_size": "is too large a number",
    "float_parsing": "is no number",
    "greater_than_equal": "is less than {ge}",
    "less_than_equal": "is more than {le}",
    "enum": "is none of {expected}",
    "literal_error": "is none of {expected}",
}


_EARLY = "interrupted before it was done"
_OF_STDOUT = {errno.ENOSPC: "no space is left on the device", errno.EBADF: "it is closed"}


def run(command: Callable[[], Any]) -> int:
    """Run the command line and say what is to be said of how it ends; its exit code."""
    _have_streams()
    return _flushed(_ended(command))


@contextmanager
def plainly() -> Iterator[None]:
    """What a reader that has gone does not read is no fault, and Ctrl-C is said; typer would have it the other way round."""
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(_said(_EARLY, INTERRUPTED)) from None
    except BrokenPipeError:
        forget_stdout()
        raise typer.Exit(OK) from None


def _have_streams() -> None:
    """Has stdin, stdout and stderr be there. Python leaves out what its caller has closed, and the next file gets its number.

    As glibc does for programs with the rights of another user: what is opened instead can be neither read nor written the way
    that it is for, which is said where it is tried. But what stderr is told goes nowhere.
    """
    for name, way, mode in (("stdin", os.O_WRONLY, "r"), ("stdout", os.O_RDONLY, "w"), ("stderr", os.O_WRONLY, "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, way), mode, encoding="utf-8"))  # the lowest number that is free
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # what this locale has no letters for


def _ended(command: Callable[[], Any]) -> int:
    try:
        return int(command() or OK)
    except KeyboardInterrupt:
        return _said(_EARLY, INTERRUPTED)
    except typer.Abort:
        return _said("interrupted: nothing more was done", INTERRUPTED)
    except UsageError as error:
        return _usage(error)
    except ModuleNotFoundError as missing:
        if (missing.name or "").startswith("oncelog"):
            raise
        return _said(f"oncelog: {missing.name} is not installed; {EXTRA}", ERROR)
    except OSError as error:
        if error.filename is None and error.errno in _OF_STDOUT:
            forget_stdout()  # it is said once
        return _said(f"error: {_of_system(error)}", ERROR)
    except UnicodeEncodeError as error:
        if "surrogate" not in error.reason:
            raise
        # Python makes half a surrogate pair of a byte that is no UTF-8. The text may be a token.
        return _said("error: what was typed, or the environment says, is no text in UTF-8", USAGE)
    except Exception as error:
        if os.environ.get("ONCELOG_TRACEBACK"):
            raise
        return _said(f"error: {_bug(error)}", BUG)


def _usage(error: Any) -> int:
    """Too little or too much was typed; typer's own text has the usage and a box around it."""
    text = str(error.format_message()).replace(":\n\t", " ").replace(",\n\t", ", ").rstrip()
    if type(error).__name__ == "NoArgsIsHelpError":
        return _said(text, USAGE)
    text = (
        (_of_value(error) or _of_option(error) or text)
        .replace(". Did you mean", "; did you mean")
        .rstrip(".")
        .removeprefix("Invalid value: ")
        .replace("Value error, ", "")
    )
    path = "oncelog" if error.ctx is None else error.ctx.command_path
    more = "" if text.endswith("?") else f"; see {path} --help"
    return _said(f"error: {text[:1].lower()}{text[1:]}{more}", USAGE)


def _of_option(error: Any) -> str | None:
    """Of an option that has another name here."""
    if error.ctx is None or not hasattr(error, "option_name"):
        return None
    ours = meant(error.option_name, {option for param in error.ctx.command.params for option in param.opts})
    return None if ours is None else f"No such option: {error.option_name}. Did you mean {ours}?"


def _of_value(error: Any) -> str | None:
    """Of a value that is none of its type, as pydantic found it for typer; it says neither the value nor that in words."""
    found = getattr(error.__cause__, "errors", None)
    if found is None:
        return None
    what = found()[0]
    said = _WRONG.get(what["type"])
    if said is None:
        return None
    return f"{what['input']!r} {said.format(**what.get('ctx', {}))}: {error.param.get_error_hint()}"


def _of_system(error: OSError) -> str:
    what = error.strerror or str(error)
    if error.filename is None and error.errno in _OF_STDOUT:
        return f"stdout cannot be written: {_OF_STDOUT[error.errno]}"
    return f"{error.filename}: {what}" if error.filename is not None else what


def _bug(error: Exception) -> str:
    return f"oncelog failed itself ({type(error).__name__}: {error}), which is a bug; ONCELOG_TRACEBACK=1 shows where"


def _said(text: str, code: int) -> int:
    with suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)
    return code


def _flushed(code: int) -> int:
    """Python writes what is left when it ends, and would complain at length of what it cannot."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        forget_stdout()  # its reader has enough (`| head`): not a fault
    except (OSError, ValueError) as error:
        forget_stdout()
        if isinstance(error, OSError):
            return _said(f"error: {_of_system(error)}", code or ERROR)
    return code


def forget_stdout() -> None:
    """Sends stdout nowhere when its reader has gone, or its disk is full: Python would complain at exit."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
