"""`oncelog`: serve, and all one does with a service. One file for each noun or verb; docs/cli.md is complete, a test says so."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any

import typer

import oncelog
from oncelog_service.cli.frame import completing, ending
from oncelog_service.cli.frame.lazy import Group, Later

COMMANDS: Mapping[str, tuple[str, str]] = {
    "context": ("nouns.context", "Keep services by name, with address and token."),
    "serve": ("serve", "Run a service until Ctrl-C or SIGTERM."),
    "topic": ("nouns.topic", "Create, list, show, update and delete topics."),
    "publish": ("messages.publish", "Publish messages: arguments, lines, JSON, CSV, Parquet, files."),
    "cdap-import": ("messages.cdap_import", "Import the messages of a topic of CDAP's."),
    "read": ("messages.read", "Print a topic's messages in order."),
    "bench": ("messages.bench", "Measure the service, on a topic of its own."),
    "inspect": ("inspect", "Show what lies in the tables of a topic."),
    "producer": ("nouns.producer", "List, show and forget the producers of a topic."),
    "subscription": ("nouns.subscription", "List, show, move and delete subscriptions."),
    "namespace": ("nouns.namespace", "List namespaces; set what holds for their topics."),
    "token": ("nouns.token", "Make, list and revoke tokens: who may do what."),
    "tx": ("nouns.tx", "List, show and end transactions."),
    "atomic": ("nouns.atomic", "List, show and abort atomic commits."),
    "outbox": ("outbox", "Publish what a transactional outbox holds."),
    "pipeline": ("pipeline", "Run a pipeline on Spark: archive, backfill, audit."),
    "completion": ("completion", "Print what has a shell complete commands and names."),
    "tx-serve": ("serve", "Run a transaction service alone."),
    "config": ("configuration", "Show and check the settings of a service."),
    "backup": ("stores.commands", "Back a running store up; list and prune backups."),
    "renew": ("stores.commands", "Begin another incarnation of a store that was put back."),
    "restore": ("stores.commands", "Make a backup a store again, and verify it."),
    "verify": ("stores.commands", "Read all logs again, and compare the maps with them."),
    "copy": ("stores.commands", "Copy a store into another one, byte for byte."),
    "salvage": ("stores.commands", "Copy what can still be read of a damaged store."),
    "status": ("status", "Say whether the service is up, and how its topics stand."),
    "doctor": ("health.doctor", "Say what is wrong, and how to mend it."),
    "top": ("health.top", "Show what goes on in the service."),
    "cluster": ("nouns.cluster", "Show which instance serves which topic."),
}
"""Each command's module, which is loaded when it is run, and what help says of it."""

_EVERYWHERE = (
    "Commands that ask a service take, behind their name or before it: -u/--url, -c/--context, -N/--namespace, --token, --ca, "
    "--cert, --cert-key, -j/--json."
)


class Root(Group):
    """`oncelog` itself."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        for name, (module, text) in COMMANDS.items():
            self.add_command(Later(name, f"{__name__}.{module}", text))

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run; in standalone mode that ends the process, by a sentence and a code where something went wrong."""
        if completing.VARIABLE in os.environ:
            completing.answer(partial(super().main, args, prog_name, completing.VARIABLE))
        run = partial(super().main, args, prog_name, complete_var, False, windows_expand_args, **extra)
        if not standalone_mode:
            return run()
        sys.exit(ending.run(run))

    def make_context(self, *args: Any, **given: Any) -> Any:
        """Read the command line, which may print help; to a reader that has gone (`| head`) enough was printed."""
        with ending.plainly():
            return super().make_context(*args, **given)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; so for what that prints."""
        with ending.plainly():
            return super().invoke(ctx)


app = typer.Typer(
    cls=Root,
    name="oncelog",
    help="A log where every message lands once.",
    epilog=_EVERYWHERE,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    add_completion=False,  # it would write into files of the shell; `oncelog completion` prints
    rich_markup_mode=None,  # what it draws takes 0.1 s to load, and folds into splinters where a terminal is narrow
    # A traceback with the values of all variables would show the token.
    pretty_exceptions_enable=False,
)


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, help="Print the version and end.", callback=lambda on: _version(on))
    ] = False,
) -> None:
    """A log where every message lands once."""


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"oncelog {oncelog.__version__}")
        raise typer.Exit


def main() -> None:
    """The entry point."""
    app(prog_name="oncelog")
