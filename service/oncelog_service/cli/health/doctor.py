"""`oncelog doctor`: what is wrong and how to mend it, from inside the service and from outside."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.text import Text

import oncelog
from oncelog.api.api import Api
from oncelog.errors import CertificateRefused, ConnectionFailed, NotAllowed, OncelogError, Unauthorized
from oncelog.http.credentials import shown
from oncelog.wire.overview import SEVERITIES, Alarm, Overview
from oncelog_service.cli.frame.codes import CRITICAL, OK, WARNING
from oncelog_service.cli.health import outside
from oncelog_service.cli.output import iso_time
from oncelog_service.cli.session import Session, command
from oncelog_service.config import LOOPBACK, Settings
from oncelog_service.sources import BadConfigFile
from oncelog_service.storage.files.directory import holder_of
from oncelog_service.storage.open import path_of, store_opener
from oncelog_service.watch.rules import CLOCKS_APART_MS, count, span

_EXIT = {"critical": CRITICAL, "warning": WARNING, "info": OK}
_STYLE = {"critical": "bold red", "warning": "bold yellow", "info": "bold"}


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "doctor", namespaced=False, reads=True)(doctor)


def doctor(
    session: Session,
    store: Annotated[
        str | None,
        typer.Option("--store", metavar="URL", help="The store to look at, else that of the service, or of the settings."),
    ] = None,
) -> None:
    """Say what is wrong with the service, its disk and its settings, and how to mend it; the most severe first.

    Changes nothing, and works also while the service does not answer. Exits with 12 if anything is critical, else with 11 for a
    warning.
    """
    if store is not None:
        _check_store(store)
    client = session.client
    silence, overview, alarms = _of_service(client)
    answers = silence is None
    settings = _settings()
    here = (urlsplit(client.url).hostname or "") in LOOPBACK
    path = _path(store, overview, settings if here else None, answers=answers)
    if silence is not None:
        alarms += _silent(client.url, path, silence)
    if path is not None:
        floor = settings.min_free_bytes if settings is not None else 0
        alarms += outside.of_store(path, floor, answers=answers)
    if here:
        alarms += outside.of_settings(settings)
    alarms.sort(key=lambda each: SEVERITIES.index(each.severity))
    value = {
        "url": shown(client.url),
        "answers": answers,
        "store": None if path is None else str(path),
        "alarms": [each.model_dump(mode="json") for each in alarms],
    }
    if session.out.as_json:
        session.out.result(value, "")
    else:
        _print(alarms, f"the service at {value['url']}", "" if path is None else f", the store {path}", here)
    raise typer.Exit(max((_EXIT[each.severity] for each in alarms), default=0))


def _check_store(url: str) -> None:
    try:
        store_opener(url)
    except ValueError as error:
        raise typer.BadParameter(str(error).removeprefix("--store "), param_hint="--store") from None


def _path(named: str | None, overview: Overview | None, settings: Settings | None, *, answers: bool) -> Path | None:
    """Where the store lies that is to be looked at; None: not in files, or not on this machine. ``settings``: None there."""
    if named is not None:
        return path_of(named)
    if settings is None:
        return None
    path = path_of(settings.store if overview is None else overview.store)
    # Of a service that answers, what is not found here may be a container's.
    return path if path is not None and (not answers or path.exists()) else None


def _settings() -> Settings | None:
    try:
        return Settings()
    except (BadConfigFile, ValidationError):
        return None  # which the checks say


# --- the service


def _of_service(client: Api) -> tuple[str | None, Overview | None, list[Alarm]]:
    """Why it does not answer – None: it does –, what it tells – None: nothing –, and what is wrong with it."""
    began_ms = time.time() * 1000
    try:
        overview = client.overview()
    except ConnectionFailed as error:
        return error.detail.partition("; is it running?")[0].rpartition("cannot be reached: ")[2], None, []
    except OncelogError as error:
        return None, None, [_refused(client, error)]
    ended_ms = time.time() * 1000
    return None, overview, [*overview.alarms, *_beside(overview, began_ms, ended_ms)]


def _refused(client: Api, error: OncelogError) -> Alarm:
    docs = "access.md#tokens"
    if isinstance(error, CertificateRefused):
        parts, docs = urlsplit(client.url), "operating.md#tls"
        there = parts.netloc.rpartition("@")[2]
        mend, commands = (
            "Where it has expired, put another one in its place: the service reads it within a second. Where a CA of your own "
            "has signed it, name that: --ca, or ONCELOG_CA. Where it is for other hosts, ask by one of its names: --url, or "
            "ONCELOG_URL. Where the service takes none of this client's, or wants one: --cert, or ONCELOG_CERT.",
            [
                f"openssl s_client -connect {shlex.quote(there if parts.port else there + ':443')} < /dev/null"
                " | openssl x509 -noout -issuer -dates -ext subjectAltName"
            ],
        )
    elif isinstance(error, Unauthorized | NotAllowed):
        mend, commands = (
            "Ask with a token that has the right observe: --token, or ONCELOG_TOKEN.",
            ["oncelog token create NAME --grant observe"],
        )
    elif error.code == "not_found":
        mend = "It is an older one, which does not tell this, or another service: use the command of its version."
        commands = ["oncelog status"]
    else:
        mend, commands = "Look at the log of the service.", [f"curl -sS {shlex.quote(shown(client.url) + '/healthz')}"]
    return Alarm(
        code="service_refuses",
        severity="warning" if client.healthy() else "critical",
        subject=f"the service at {shown(client.url)}",
        what=f"the service does not say how it is: {error.detail.rstrip('.')}",
        mend=mend,
        commands=commands,
        docs=docs,
    )


def _beside(overview: Overview, began_ms: float, ended_ms: float) -> Iterator[Alarm]:
    if overview.version != oncelog.__version__:
        yield Alarm(
            code="versions_differ",
            severity="warning",
            subject="the versions",
            what=f"the service is oncelog {overview.version}, and this command {oncelog.__version__}",
            mend="Use the command of the service's version, or bring both to one.",
            commands=["pip install " + shlex.quote(f"oncelog[service]=={overview.version}")],
            docs="operating.md#alarms",
        )
    # It looked at its clock between the two: what lies outside of that is the least that they are apart.
    apart = max(began_ms - overview.now_ms, overview.now_ms - ended_ms)
    if apart >= CLOCKS_APART_MS:
        yield Alarm(
            code="clocks_apart",
            severity="warning",
            subject="this machine",
            what=f"the clock of the service and that of this machine are {span(apart)} apart, at least",
            mend="Set the clocks of both by NTP.",
            commands=["timedatectl status"],
            docs="operating.md#alarms",
        )


def _silent(url: str, path: Path | None, why: str) -> Iterator[Alarm]:
    """Nothing answers there: why, and whether a process has the store, says where to look."""
    holder = None if path is None or not path.exists() else holder_of(path)
    if holder is None:
        what, mend = (
            f"nothing answers at {shown(url)} ({why})",
            ("Start the service, or name its address as it is, with https:// where it speaks TLS: --url, or ONCELOG_URL."),
        )
        if path is not None:
            what += f", and no process that is seen from here has {path} open"
        store = f" --store {shlex.quote(f'leveldb://{path.absolute()}')}" if path is not None and path.is_dir() else ""
        commands = [f"oncelog serve{store}"]
    else:
        what = f"nothing answers at {shown(url)} ({why}), though process {holder} has the store {path} open"
        mend = "It is starting, stuck, or listens at another address: look at its log."
        commands = [f"ps -o pid,etime,stat,args -p {holder}", "oncelog config show"]
    yield Alarm(
        code="service_silent",
        severity="critical",
        subject=f"the service at {shown(url)}",
        about={} if holder is None else {"pid": holder},
        what=what,
        mend=mend,
        commands=commands,
        docs="operating.md#run-it",
    )


# --- for people


def _print(alarms: list[Alarm], service: str, store: str, here: bool) -> None:
    out = Console(file=sys.stdout, highlight=False, soft_wrap=True)
    for each in alarms:
        head = Text.assemble((each.severity.upper(), _STYLE[each.severity]), f"  {each.subject}  [{each.code}]")
        out.print(head)
        since = f" (since {iso_time(each.since_ms)})" if each.since_ms is not None else ""
        out.print(Text(f"  {each.what[:1].upper()}{each.what[1:]}.{since}"))
        out.print(Text(f"  {each.mend}"))
        for line in each.commands:
            out.print(Text(f"      {line}"))
        out.print(Text(f"  docs/{each.docs}\n"))
    looked = f"{service}{store}{', the settings' if here else ''}"
    wrong = [each for each in alarms if each.severity != "info"]
    said = f"{count(len(wrong), 'thing')} {'is' if len(wrong) == 1 else 'are'} wrong" if wrong else "nothing is wrong"
    out.print(Text(f"{said}; looked at {looked}"))
