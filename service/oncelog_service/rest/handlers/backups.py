"""A backup of the store, taken while it is served, with progress."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Generator
from contextlib import suppress
from pathlib import Path

from pydantic import ConfigDict

from oncelog.errors import BackupFailed, DiskFull, InvalidRequest, NotSupported
from oncelog.wire import models
from oncelog.wire.media import NDJSON
from oncelog_service.reading import read
from oncelog_service.rest.answer import Answer
from oncelog_service.rest.routes import Call
from oncelog_service.storage.backup.archive import Archive, Backup, BackupError, BackupHasNoRoom
from oncelog_service.storage.backup.taking import Progress, take
from oncelog_service.transactions.store_id import find_store_id

_ALIVE_SECONDS = 5.0
"""So long a line is waited for at most: the last one comes again while one large file is copied."""

_LONGEST_NOTED = 1_000
"""Characters of a directory that the audit log keeps."""

_Steps = Generator[Progress | Backup]


class TakeBackup(models.Resource):
    """Where a backup goes."""

    model_config = ConfigDict(extra="forbid")

    directory: str
    """On the service's machine: below its `backup_root`, relative to that or absolute."""


async def take_(call: Call, asked: TakeBackup) -> Answer:
    """A backup of the whole store at one moment, which lies between the request and the answer, while it goes on.

    Lines of JSON: `{"bytes": n, "of": m}` while it copies, and the backup as the last line, or `{"problem": …}`. Only a last line
    with `position` is a backup: a body that ends without one was cut off, and there is none. It ends, without a backup, when its
    client hangs up, and with 507 `disk_full`, at once or on the way, where less than `min_free_bytes` of its disk would be left.
    """
    service = call.service
    call.subject = {"directory": asked.directory[:_LONGEST_NOTED]}
    where = _below(service.settings.backup_root, asked.directory)
    store = service.opening.store
    if store.staged() is None:
        raise NotSupported("this store does not lie in files: back it up with the tools of its database")
    store_id = await read(find_store_id, store) or ""
    steps = take(Archive(where, service.settings.min_free_bytes), store, store_id, service.clock.now_ms())
    first = await _next(call, steps)  # what refuses it at once is answered with a status
    return Answer(_lines(call, where, steps, first), NDJSON)


async def _lines(call: Call, where: Path, steps: _Steps, found: Progress | Backup) -> AsyncGenerator[bytes, None]:
    try:
        while isinstance(found, Progress):
            yield _line(found._asdict())
            step = asyncio.ensure_future(_next(call, steps))
            while not (await asyncio.wait([step], timeout=_ALIVE_SECONDS))[0]:
                yield _line(found._asdict())
            found = step.result()
    except (BackupFailed, DiskFull) as error:
        yield _line({"problem": error.to_problem()})
        return
    finally:
        with suppress(ValueError):  # a file is being copied; it ends, and is forgotten
            steps.close()
    yield _line(found.told(str(where)).to_wire())


async def _next(call: Call, steps: _Steps) -> Progress | Backup:
    try:
        return await call.service.scans.read(next, steps)
    except BackupHasNoRoom as error:
        raise DiskFull(f"{error}; make room there, or choose another disk") from error
    except BackupError as error:
        raise BackupFailed(str(error)) from error


def _below(root: Path | None, asked: str) -> Path:
    """Finds the directory, wherever links lead. Raises NotSupported, InvalidRequest."""
    if root is None:
        raise NotSupported("this service writes no backups: `oncelog serve --backup-root` names the directory for them")
    try:
        root = root.resolve()
        found = (root / asked).resolve()
    except (OSError, ValueError, RuntimeError) as error:
        raise InvalidRequest(f"that is no directory: {asked[:200]!r}") from error
    if not found.is_relative_to(root):
        raise InvalidRequest(f"{asked[:200]!r} does not lie below the service's directory for backups")
    return found


def _line(value: object) -> bytes:
    return json.dumps(value).encode() + b"\n"
