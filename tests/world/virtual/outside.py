"""What is around a world while it runs."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from unittest import mock

from oncelog_service import group_commit
from tests.world.virtual.loop import VirtualLoop


class Outside:
    """What is around a run: the service logs nothing, and what a killed process leaves behind is collected without a word."""

    def __init__(self) -> None:
        self.unraised: list[str] = []
        """Errors that nobody could catch, while the world ran; and that memory could not follow what was written: the service
        then reads all back by itself, and no client can tell."""
        self.runs = True

    def end(self, loop: VirtualLoop) -> None:
        """The world is over: what is left of killed processes ends now, and not within another test."""
        self.runs = False
        for task in asyncio.all_tasks(loop):
            with suppress(Exception):
                task.get_coro().close()  # type: ignore[union-attr]
        loop.close()

    @contextmanager
    def quiet(self) -> Iterator[None]:
        before, hook = logging.root.manager.disable, sys.unraisablehook
        logging.disable(logging.CRITICAL)
        sys.unraisablehook = self._unraisable
        gc.freeze()  # what was there before is not looked through at the end
        try:
            with mock.patch.object(
                group_commit._log, "error", lambda said, exc_info: self.unraised.append(f"{said}: {exc_info!r}")
            ):
                yield
        finally:
            self.runs = False
            gc.collect()
            gc.unfreeze()
            sys.unraisablehook = hook
            logging.disable(before)

    def _unraisable(self, error: sys.UnraisableHookArgs) -> None:
        if self.runs:
            self.unraised.append(f"{error.exc_value!r} in {error.object!r}")
