"""`oncelog backup …` and `restore`: of stores in files (storage/backup), served or stopped."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import typer
from rich.filesize import decimal

from oncelog.wire import models
from oncelog_service.cli.frame.codes import FOUND
from oncelog_service.cli.output import Output, iso_time, progress_bar
from oncelog_service.cli.session import Session, confirm
from oncelog_service.cli.stores.opening import CannotOpen, check_store, ending, opened
from oncelog_service.cli.stores.verify import note_problems, over_store
from oncelog_service.renewal import LIVES_AGAIN, begin_incarnation
from oncelog_service.storage.backup.archive import Archive, Backup, BackupDamaged, BackupError
from oncelog_service.storage.backup.layout import lay_out
from oncelog_service.storage.backup.restoring import Restoring, check_position
from oncelog_service.storage.backup.taking import Progress, take
from oncelog_service.storage.copying import check_whole
from oncelog_service.storage.open import path_of, shown
from oncelog_service.storage.port import Store
from oncelog_service.transactions.store_id import find_store_id

_TELLING = "{task.fields[size]}"


def create_backup(session: Session, directory: str, store: str | None) -> None:
    """Takes a backup through the service, or of a ``store`` that is not served, and prints it."""
    out = session.out
    session.so_far = lambda: "no backup was made"
    with progress_bar(out.as_json, _TELLING) as bar:
        task = bar.add_task("backing up", total=None, size="")

        def tell(done: int, of: int) -> None:
            bar.update(task, completed=done, total=of, size=decimal(done))

        if store is None:
            found = _through_the_service(session, directory, tell)
        else:
            with _ending(out, "backup"):
                found = _of_a_store(store, Path(directory), tell)
    text = (
        f"backup {found.number} in {found.directory}: position {found.position}, {decimal(found.bytes)} in {found.files} files, "
        f"{decimal(found.new_bytes)} of them new"
    )
    out.result(found.model_dump(mode="json"), text)
    out.note(f"oncelog backup verify {found.directory}  proves it, on the machine where it lies")


def _through_the_service(session: Session, directory: str, tell: Callable[[int, int], None]) -> models.Backup:
    for step in session.client.backup(directory):
        if isinstance(step, models.Backup):
            return step
        tell(*step)
    raise AssertionError("Client.backup ends with a Backup or raises")


def _of_a_store(url: str, directory: Path, tell: Callable[[int, int], None]) -> models.Backup:
    check_store(url, "--store", there=True)
    with opened(url) as store:
        check_whole(store)
        store_id = find_store_id(store)
        if store_id is None:
            raise BackupError("there is no store there: no service has ever opened it")
        with closing(take(Archive(directory), store, store_id, _now_ms())) as steps:
            for step in steps:
                if isinstance(step, Progress):
                    tell(*step)
                else:
                    return step.told(str(directory))
    raise AssertionError("take ends with a Backup or raises")


def list_backups(out: Output, directory: Path) -> None:
    """Prints the backups of a directory; exits with 2 where one is damaged."""
    archive, found = Archive(directory), list[models.Backup]()
    damages = []
    with _ending(out, "backup"):
        for number in archive.numbers():
            try:
                backup = archive.read(number)
            except BackupDamaged as damage:
                damages.append(str(damage))
                continue
            found.append(backup.told(str(directory)))
    out.rows(found, ("number", "taken_ms", "position", "files", "bytes", "new_bytes"))
    for each in damages:
        out.note(each)
    if damages:
        raise typer.Exit(FOUND)


def verify_backup(out: Output, directory: Path, number: int | None) -> None:
    """Reads every byte of a backup, opens it elsewhere and verifies its topics; exits with 10 if anything is wrong."""
    archive = Archive(directory)
    with _ending(out, "backup"), tempfile.TemporaryDirectory(prefix="oncelog-backup-") as name:
        backup = _chosen(archive, number)
        with progress_bar(out.as_json, _TELLING) as bar:
            task = bar.add_task("reading", total=backup.bytes, size="")
            for file in backup.files:
                archive.copy_out(file, None)
                bar.update(task, advance=file.bytes)
        url = lay_out(archive, backup, Path(name), linked=True)
        check_position(url, backup)
        _verified(out, url, backup, {"directory": str(directory)}, f"backup {backup.number} is whole")


def prune_backups(out: Output, directory: Path, keep: int, yes: bool) -> None:
    """Deletes all but the newest backups, and prints what went. Asks first, unless ``yes``."""
    archive = Archive(directory)
    confirm(out, f"delete all backups in {directory} but the newest {keep}?", yes)
    with _ending(out, "backup"), archive.kept():
        going, freed = archive.delete(keep)
    value = {"deleted": going, "bytes": freed, "kept": archive.numbers()}
    out.result(value, f"deleted {len(going)} backups, {decimal(freed)}; {len(archive.numbers())} are kept")


def restore_backup(out: Output, directory: Path, number: int | None, url: str) -> None:
    """Makes a backup a store in an empty place, verifies that, and only then lets services open it."""
    check_store(url, "--store", there=False)
    path = path_of(url)
    if path is None:
        raise typer.BadParameter("a backup becomes a store in files: leveldb:///path, sqlite:///path", param_hint="--store")
    archive = Archive(directory)
    with _ending(out, "restore"):
        backup = _chosen(archive, number)
        if not url.startswith(f"{backup.kind}:"):
            raise BackupError(f"backup {backup.number} is one of a {backup.kind} store; `oncelog copy` changes the kind")
        now_ms = _now_ms()
        if now_ms < backup.taken_ms:
            raise BackupError(
                f"backup {backup.number} was taken at {iso_time(backup.taken_ms)}, and by the clock of this machine it is "
                f"{iso_time(now_ms)}: what was acknowledged since would be handed out again; set the clock first"
            )

        def begin(store: Store) -> None:
            begin_incarnation(store, now_ms, backup.taken_ms)

        with Restoring(backup.kind, path) as restoring:
            with progress_bar(out.as_json, _TELLING) as bar:
                task = bar.add_task("restoring", total=backup.bytes, size="")
                laid = restoring.lay(archive, backup, begin, lambda size: bar.update(task, advance=size))
            facts = {"directory": str(directory), "store": shown(url)}
            _verified(out, laid, backup, facts, f"backup {backup.number} is the store {shown(url)} now", restoring.finish)
    out.note("what was acknowledged behind the backup is not in it; clients of before are told (docs/operating.md)")
    out.note(LIVES_AGAIN)


def _chosen(archive: Archive, number: int | None) -> Backup:
    return archive.newest() if number is None else archive.read(number)


def _verified(
    out: Output,
    url: str,
    backup: Backup,
    facts: Mapping[str, str],
    text: str,
    on_sound: Callable[[], None] = lambda: None,
) -> None:
    """Verifies all topics, has what is sound be finished, and prints it. Exits with 2 if anything is wrong."""
    with progress_bar(out.as_json, "{task.fields[messages]:,} messages") as bar:
        found: Sequence[models.Verification] = over_store(out, url, (), None, bar, is_copy=True)
    ok = all(each.ok for each in found)
    if ok:
        on_sound()
    messages = sum(each.messages for each in found)
    value = {
        **backup.told(facts["directory"]).model_dump(mode="json"),
        **facts,
        "ok": ok,
        "messages": messages,
        "topics": [each.model_dump(mode="json") for each in found],
    }
    of = f"position {backup.position}, taken {iso_time(backup.taken_ms)}, {len(found)} topics, {messages:,} messages"
    out.result(value, f"{text}: {of}" if ok else f"backup {backup.number} is damaged: {of}")
    note_problems(out, found)
    if not ok:
        raise typer.Exit(FOUND)


@contextmanager
def _ending(out: Output, verb: str) -> Iterator[None]:
    """What goes wrong, as a sentence: exit code 1, or 2 where a backup is damaged."""
    try:
        with ending(out, verb):
            try:
                yield
            except (BackupError, OSError) as error:
                if isinstance(error, BackupDamaged):
                    raise
                raise CannotOpen(str(error)) from error
    except BackupDamaged as damage:
        out.failure({"title": "A backup is damaged", "code": "backup_damaged", "detail": str(damage)}, f"damaged: {damage}")
        raise typer.Exit(FOUND) from None


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
