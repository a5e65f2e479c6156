"""`oncelog config show` and `oncelog config check`: what a service would run with, and whether it could."""

from __future__ import annotations

import errno
import inspect
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import typer
from pydantic import ValidationError

from oncelog.http.credentials import shown
from oncelog_service.cli.frame.codes import FOUND
from oncelog_service.cli.frame.lazy import noun
from oncelog_service.cli.output import Output
from oncelog_service.cli.session import Json, as_command
from oncelog_service.cli.settings import setting_option, settings_from
from oncelog_service.config import SECRETS, Settings, open_file
from oncelog_service.sources import FILE, BadConfigFile, Origin, problems_of
from oncelog_service.storage.open import load_driver, path_of
from oncelog_service.storage.open import shown as shown_store
from oncelog_service.storage.port import DriverMissing

group = noun()

Outcome = Literal["ok", "warning", "failed", "not checked"]


class Check(NamedTuple):
    """What was looked at, and what came of it."""

    what: str
    outcome: Outcome
    detail: str


def register(app: typer.Typer) -> None:
    """Add the commands. That which shows takes every option of `serve`."""
    options = [setting_option(name, field) for name, field in Settings.model_fields.items()]
    options.append(inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, annotation=Json, default=False))
    as_command(group, "show", show, options, show.__doc__ or "")
    group.command("check")(check)
    app.add_typer(group, name="config")


def show(as_json: bool, **given: Any) -> None:
    """Show what `oncelog serve` would run with, these options given, and where each value comes from. Secrets are left out."""
    chosen = {name: value for name, value in given.items() if value is not None}
    values, origins = settings_from(chosen).model_dump(mode="json"), Settings.origins(chosen)
    rows = [{"setting": name, "value": value, **origins[name]._asdict()} for name, value in values.items()]
    lines = [[name, _shown(value), _whence(origins[name])] for name, value in values.items()]
    Output(as_json).table(rows, ["setting", "value", "from"], lines)


def check(
    path: Annotated[Path | None, typer.Argument(metavar="PATH", help="Config file.", envvar="ONCELOG_CONFIG")] = None,
    as_json: Json = False,
) -> None:
    """Check what a service would run with, and the files that it names; nothing is changed. Exits with 10 if anything is wrong.

    Beside the file the environment counts, as it does for a service.
    """
    checks = list(checked({} if path is None else {FILE: path}))
    Output(as_json).table([each._asdict() for each in checks], Check._fields, checks)
    if any(each.outcome == "failed" for each in checks):
        raise typer.Exit(FOUND)


def checked(given: Mapping[str, Any]) -> Iterator[Check]:
    """What a service would meet that is started with these options here; nothing is changed."""
    try:
        settings = Settings(**given)
    except (BadConfigFile, ValidationError) as error:
        yield from (Check("settings", "failed", str(problem)) for problem in problems_of(error, Settings, given))
        return
    source = "the environment" if settings.config is None else f"{settings.config} and the environment"
    yield Check("settings", "ok", f"read from {source}")
    looks = (_secrets, _certificate, _keys, _store, _audit, _backups, _address, _exposure)
    for look in looks:
        yield from look(settings)


def _secrets(settings: Settings) -> Iterator[Check]:
    for name in SECRETS:
        path = getattr(settings, f"{name}_file")
        if path is not None:
            yield Check(f"{name}_file", "ok", f"{path} holds one line of text")
    if settings.exposed_file is not None:
        yield Check("config", "warning", open_file(settings.exposed_file))


def _certificate(settings: Settings) -> Iterator[Check]:
    from oncelog_service.rest.certificates import BadCertificate, Certificates

    try:
        found = Certificates.of(settings)
    except BadCertificate as error:
        yield Check("tls_certificate", "failed", str(error))
    else:
        if found is not None:
            yield Check("tls_certificate", "ok", "certificate, key and CA of clients can be read and go together")


def _keys(settings: Settings) -> Iterator[Check]:
    from oncelog_service.access.issuer import document_in, keys_of

    named = settings.jwt_keys
    if named is None:
        return
    if "://" in named:
        yield Check("jwt_keys", "not checked", f"{shown(named)} is not asked")
        return
    try:
        keys = keys_of(document_in(Path(named)))
    except OSError as error:
        yield Check("jwt_keys", "failed", f"{named} cannot be read: {error.strerror}")
    except ValueError as error:
        yield Check("jwt_keys", "failed", f"{named}: {error}")
    else:
        yield Check("jwt_keys", "ok", f"{named} has {len(keys)} keys")


def _store(settings: Settings) -> Iterator[Check]:
    path = path_of(settings.store)
    try:
        load_driver(settings.store)
    except DriverMissing as error:
        yield Check("store", "failed", str(error))
    if path is None:
        yield Check("store", "not checked", f"{shown_store(settings.store)} is not opened")
    elif path.exists():
        good = os.access(path, os.R_OK | os.W_OK | (os.X_OK if path.is_dir() else 0))
        said = "is there and can be written; it is not opened" if good else "is there, and this user cannot read and write it"
        yield Check("store", "ok" if good else "failed", f"{path} {said}")
    else:
        yield _makable("store", path)


def _audit(settings: Settings) -> Iterator[Check]:
    path = settings.audit_log
    if path is not None and path.exists():
        good = path.is_file() and os.access(path, os.W_OK)
        yield Check("audit_log", "ok" if good else "failed", f"{path} can {'' if good else 'not '}be written")
    elif path is not None:
        good = os.access(path.parent, os.W_OK | os.X_OK)
        yield Check("audit_log", "ok" if good else "failed", f"{path} can {'' if good else 'not '}be made")


def _backups(settings: Settings) -> Iterator[Check]:
    path = settings.backup_root
    if path is not None and path.exists():
        good = path.is_dir() and os.access(path, os.W_OK | os.X_OK)
        yield Check("backup_root", "ok" if good else "failed", f"{path} can {'' if good else 'not '}be written")
    elif path is not None:
        yield _makable("backup_root", path)


def _makable(what: str, path: Path) -> Check:
    """What is missing is made with the directories above it."""
    above = next(each for each in path.absolute().parents if each.exists())
    if above.is_dir() and os.access(above, os.W_OK | os.X_OK):
        return Check(what, "ok", f"{path} is not there and can be made")
    return Check(what, "failed", f"{path} is not there, and this user cannot make it in {above}")


def _address(settings: Settings) -> Iterator[Check]:
    from oncelog_service.app import listen

    address = f"{settings.host}:{settings.port}"
    try:
        listen(settings).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            yield Check("port", "warning", f"{address} is taken: by the service that runs, or by another process")
        else:
            yield Check("port", "failed", f"cannot listen on {address}: {error.strerror or error}")
    else:
        yield Check("port", "ok", f"{address} is free")


def _exposure(settings: Settings) -> Iterator[Check]:
    from oncelog_service.app import Exposed, check_exposure, readers_warning

    try:
        check_exposure(settings)
    except Exposed as error:
        yield Check("host", "warning", f"unless there is a token in the store, which is not opened: {error}")
    warning = readers_warning(settings)
    if warning is not None:
        yield Check("host", "warning", warning)


def _shown(value: object) -> object:
    return ("on" if value else "off") if isinstance(value, bool) else value


def _whence(origin: Origin) -> str:
    return f"{origin.source} {origin.named}".rstrip()
