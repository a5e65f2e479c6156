"""Whatever kills who archives, and however many do: the files hold each message once, and the page says so."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from examples.to_parquet import archive as archives
from examples.to_parquet.archive import Archive, parts
from examples.to_parquet.page import bars, by_time, top_keys, write

from oncelog import Message, Producer
from oncelog.testing import OncelogService

pytestmark = pytest.mark.real


class Killed(BaseException):
    """Stands for a process that ends here."""


@pytest.fixture(autouse=True)
def short_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "LENGTH", 50)


def publish(service: OncelogService, first: int, count: int) -> None:
    service.client.create_topic("readings", exist_ok=True)
    with Producer("readings", name="source") as producer:
        for number in range(first, first + count):
            producer.send_async(f"{number}".encode(), key=f"<{number % 7}>", sequence_id=number)


def whole(archive: Archive, count: int) -> bool:
    return [int(each) for each in archive.table()["payload"].to_pylist()] == list(range(count))


def test_each_message_is_in_the_files_once_wherever_it_is_killed(
    oncelog_service: OncelogService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance, rename, unlink, died = random.Random(3), Path.rename, Path.unlink, 0

    def dying(does: Any) -> Any:
        def done(*arguments: Any, **options: Any) -> Any:
            if chance.random() < 0.2:
                raise Killed
            result = does(*arguments, **options)
            if chance.random() < 0.2:
                raise Killed
            return result

        return done

    monkeypatch.setattr(Path, "rename", dying(rename))
    monkeypatch.setattr(Path, "unlink", dying(unlink))
    for first in range(0, 330, 33):
        publish(oncelog_service, first, 33)
        while True:
            try:
                Archive("readings", tmp_path / "archive").follow()
                break
            except Killed:
                died += 1
        assert whole(Archive("readings", tmp_path / "archive"), first + 33)
    assert died > 5
    lengths = [pq.read_metadata(tmp_path / "archive" / each.name).num_rows for each in parts(tmp_path / "archive")]
    assert lengths == [50] * 6 + [30]
    left = sorted(each.name for each in (tmp_path / "archive").glob("*.parquet"))
    assert left == [each.name for each in parts(tmp_path / "archive")], "who reads the folder by itself finds each once, too"


@pytest.mark.parametrize("archived", [0, 20])
def test_who_is_late_takes_nothing_back(
    oncelog_service: OncelogService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, archived: int
) -> None:
    """Also where the file is gone that it was to go on in."""
    archive, written = Archive("readings", tmp_path / "archive"), Archive._write
    publish(oncelog_service, 0, archived)
    archive.follow()
    publish(oncelog_service, archived, 30 - archived)

    def overtaken(self: Archive, messages: Sequence[Message[bytes]], last: Any) -> Any:
        monkeypatch.setattr(Archive, "_write", written)
        publish(oncelog_service, 30, 40)
        assert Archive("readings", tmp_path / "archive").follow() == 70 - archived
        return written(self, messages, last)

    monkeypatch.setattr(Archive, "_write", overtaken)
    archive.follow()
    assert whole(archive, 70)


def test_the_page_shows_what_is_there(oncelog_service: OncelogService, tmp_path: Path) -> None:
    archive = Archive("readings", tmp_path / "archive")
    assert (by_time(archive.table()), top_keys(archive.table())) == ([], [])
    write(archive, tmp_path / "page.html")
    publish(oncelog_service, 0, 120)
    run = [sys.executable, "-m", "examples.to_parquet", "readings", str(archive.folder), "--page", str(tmp_path / "page.html")]
    assert subprocess.run(run, check=True, capture_output=True, text=True).stdout == "120 messages\n"
    page = (tmp_path / "page.html").read_text("utf-8")
    assert "120 messages in the archive" in page
    assert "<td>&lt;0&gt;</td><td>18</td>" in page
    assert sum(by_time(archive.table())) == 120
    assert bars([1, 0, 2]).count("<rect") == 3


def test_an_erased_message_has_no_payload_in_the_files(oncelog_service: OncelogService, tmp_path: Path) -> None:
    publish(oncelog_service, 0, 3)
    oncelog_service.client.erase_message("readings", 1)
    archive = Archive("readings", tmp_path)
    archive.follow()
    assert archive.table()["payload"].to_pylist() == [b"0", None, b"2"]


def test_what_a_transaction_takes_back_is_not_archived(oncelog_service: OncelogService, tmp_path: Path) -> None:
    publish(oncelog_service, 0, 2)
    with oncelog_service.client.transaction() as tx:
        tx.send("readings", b"never happened")
        tx.checkpoint()
        publish(oncelog_service, 2, 1)
        assert Archive("readings", tmp_path / "archive").follow() == 2
        tx.abort()
    Archive("readings", tmp_path / "archive").follow()
    assert whole(Archive("readings", tmp_path / "archive"), 3)
