"""A store in files is one process's: where its file system has no locks that hold, it is not opened."""

from __future__ import annotations

import errno
import fcntl
from pathlib import Path

import pytest

from oncelog_service.storage.open import store_opener
from oncelog_service.storage.port import StoreError

SCHEMES = pytest.mark.parametrize("scheme", ["leveldb", "sqlite"])


@SCHEMES
@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EBADF, errno.EOPNOTSUPP])
def test_a_file_system_that_cannot_lock_is_refused(
    scheme: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, "not here")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(StoreError, match=r"cannot be locked \(not here\).* use a local disk"):
        store_opener(f"{scheme}://{tmp_path}/data")()
    monkeypatch.undo()
    store_opener(f"{scheme}://{tmp_path}/data")().close()


@SCHEMES
def test_locks_that_keep_nobody_out_are_none(scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    with pytest.raises(StoreError, match="keep nobody out"):
        store_opener(f"{scheme}://{tmp_path}/data")()
    monkeypatch.undo()
    store_opener(f"{scheme}://{tmp_path}/data")().close()
