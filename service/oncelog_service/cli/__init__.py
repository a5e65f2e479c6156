"""`oncelog`: serve, and all one does with a service. One file for each noun or verb; docs/cli.md is complete, a test says so."""

from __future__ import annotations

from typing import Annotated

import typer

import oncelog
from oncelog_service.cli import configuration, inspect, outbox, pipeline, serve, status
from oncelog_service.cli.health import doctor, top
from oncelog_service.cli.messages import publish, read
from oncelog_service.cli.nouns import atomic, cluster, namespace, producer, subscription, token, topic, tx
from oncelog_service.cli.stores import commands

app = typer.Typer(
    name="oncelog",
    help="A log where every message lands once.",
    no_args_is_help=True,
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


serve.register(app)
app.add_typer(topic.group, name="topic")
publish.register(app)
read.register(app)
app.add_typer(inspect.group, name="inspect")
app.add_typer(producer.group, name="producer")
app.add_typer(subscription.group, name="subscription")
app.add_typer(namespace.group, name="namespace")
app.add_typer(token.group, name="token")
app.add_typer(tx.group, name="tx")
app.add_typer(atomic.group, name="atomic")
app.add_typer(outbox.group, name="outbox")
app.add_typer(pipeline.group, name="pipeline")
serve.register_alone(app)
configuration.register(app)
commands.register(app)
status.register(app)
doctor.register(app)
top.register(app)
cluster.register(app)


def main() -> None:
    """The entry point."""
    app(prog_name="oncelog")
