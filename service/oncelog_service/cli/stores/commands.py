"""`oncelog verify`, `copy`, `salvage`, `backup …`, `restore` and `renew`: what they ask for.

What does it is loaded then, since no other command needs it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from oncelog_service.cli.frame import completing
from oncelog_service.cli.frame.lazy import noun
from oncelog_service.cli.output import Output
from oncelog_service.cli.session import Json, Session, Yes, command

Source = Annotated[str, typer.Argument(metavar="FROM", help="URL of the store; it is only read.", show_default=False)]
Target = Annotated[str, typer.Argument(metavar="TO", help="URL of an empty store, or of one begun before.", show_default=False)]


Directory = Annotated[Path, typer.Argument(metavar="DIR", help="Directory of backups.", show_default=False)]
Number = Annotated[int | None, typer.Option("--backup", min=1, help="Number of the backup; else the newest.", show_default=False)]

backups = noun()


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(backups, name="backup")
    app.command("restore")(restore)
    app.command("renew")(renew)
    command(app, "verify", namespaced=False, reads=True)(verify)
    app.command("copy")(copy)
    app.command("salvage")(salvage)


def verify(
    session: Session,
    topics: Annotated[
        list[str] | None, typer.Argument(metavar="TOPIC", help="Topics; all if none is named.", autocompletion=completing.topics)
    ] = None,
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace", "-N", help="Namespace of the topics; if no topic is named: all namespaces.", show_default=False
        ),
    ] = None,
    store: Annotated[
        str | None, typer.Option("--store", help="Open this store itself: the service is stopped.", show_default=False)
    ] = None,
    same_as: Annotated[
        str | None,
        typer.Option("--same-as", help="Compare every row of --store with this store's, as after a copy.", show_default=False),
    ] = None,
) -> None:
    """Read every message of the logs again, rebuild the maps from them and compare. Exits with 10 if anything is wrong."""
    if same_as is not None:
        if store is None or topics or namespace is not None:
            raise typer.BadParameter("goes with --store, and compares all of it", param_hint="--same-as")
        from oncelog_service.cli.stores.same import verify_same

        verify_same(session.out, store, same_as)
    else:
        from oncelog_service.cli.stores.verify import verify_topics

        verify_topics(session, topics or [], namespace, store)


def copy(source: Source, target: Target, as_json: Json = False) -> None:
    """Copy a store into another one, everything in it, byte for byte. No service may serve either meanwhile."""
    from oncelog_service.cli.stores.copy import copy_store

    copy_store(Output(as_json), source, target)


def salvage(
    source: Source,
    target: Target,
    accept_losses: Annotated[
        bool, typer.Option("--accept-losses", help="Fill the holes, and let services open the target.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Copy what can still be read of a damaged store into a new one, and name what cannot. The source is only read."""
    from oncelog_service.cli.stores.salvage import salvage_store

    salvage_store(Output(as_json), source, target, accept_losses)


@command(backups, "create", namespaced=False)
def create(
    session: Session,
    directory: Annotated[
        str, typer.Argument(metavar="DIR", help="Directory on the service's machine, below its backup root.", show_default=False)
    ],
    store: Annotated[
        str | None, typer.Option("--store", help="Open this store itself: the service is stopped.", show_default=False)
    ] = None,
) -> None:
    """Have the running service back its store up, as it is at one moment. What the directory has already is not copied again."""
    from oncelog_service.cli.stores.backup import create_backup

    create_backup(session, directory, store)


@backups.command("list")
def list_(directory: Directory, as_json: Json = False) -> None:
    """List the backups in a directory of this machine."""
    from oncelog_service.cli.stores.backup import list_backups

    list_backups(Output(as_json), directory)


@backups.command("verify")
def verify_(directory: Directory, number: Number = None, as_json: Json = False) -> None:
    """Read every byte of a backup, open it elsewhere, and verify its topics. Exits with 10 if anything is wrong."""
    from oncelog_service.cli.stores.backup import verify_backup

    verify_backup(Output(as_json), directory, number)


@backups.command("prune")
def prune(
    directory: Directory,
    keep: Annotated[int, typer.Option("--keep", min=1, help="So many of the newest stay.", show_default=False)],
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Delete older backups, and what no other one has."""
    from oncelog_service.cli.stores.backup import prune_backups

    prune_backups(Output(as_json), directory, keep, yes)


def restore(
    directory: Directory,
    store: Annotated[str, typer.Option("--store", metavar="TO", help="URL of the store that is made.", show_default=False)],
    number: Number = None,
    as_json: Json = False,
) -> None:
    """Make a backup a store again, in an empty place, and verify it; only then services open it."""
    from oncelog_service.cli.stores.backup import restore_backup

    restore_backup(Output(as_json), directory, number, store)


def renew(
    store: Annotated[str, typer.Argument(metavar="STORE", help="URL of the store.", show_default=False)],
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Begin another incarnation of a store that was put back in time by other means than restore. No service may serve it."""
    from oncelog_service.cli.stores.renew import renew_store

    renew_store(Output(as_json), store, yes)
