"""Signals wherever CPython lets a handler run: where a function begins, behind a call, at the end of a loop."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import oncelog

_PACKAGE = Path(oncelog.__file__).parent


def _ctrl_c() -> None:
    raise KeyboardInterrupt


def ctrl_c(at: int, run: Callable[[], object], modules: tuple[str, ...], handler: Callable[[], object] = _ctrl_c) -> str | None:
    """Run it, with Ctrl-C, or what another ``handler`` does, at its so-manieth chance in these modules; where that was. None: it
    has not as many."""
    left, where = at, None
    traced = {str(_PACKAGE / module) for module in modules}
    assert all(Path(module).exists() for module in traced)
    behind: dict[FrameType, str] = {}

    def on_event(frame: FrameType, what: str, _: object) -> Any:
        nonlocal left, where
        if what == "opcode":
            before = behind.get(frame, "")
            behind[frame] = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            if before.startswith(("RESUME", "CALL", "JUMP_BACKWARD", "POP_JUMP_BACKWARD")):
                left -= 1
                if left == 0:
                    sys.settrace(None)
                    where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
                    handler()
        return on_event

    def on_call(frame: FrameType, _: str, __: object) -> Any:
        if frame.f_back is not None:
            behind.pop(frame.f_back, None)  # a call of Python's own: no signal comes when it returns
        if frame.f_code.co_filename not in traced:
            return None
        frame.f_trace, frame.f_trace_opcodes = on_event, True  # in this order: CPython 3.13 looks for the former at the latter
        behind[frame] = "RESUME"  # whose own event is this one
        return on_event

    before = sys.gettrace()
    sys._getframe().f_trace_opcodes = True  # of one frame, or CPython 3.12 tells of no instruction of any
    sys.settrace(on_call)
    try:
        run()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    return where
