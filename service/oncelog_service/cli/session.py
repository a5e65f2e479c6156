"""What every command that talks to a service shares: its options, its connection, and how it ends."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer

from oncelog import Client
from oncelog.errors import OncelogError
from oncelog.wire.media import DEFAULT_NAMESPACE, DEFAULT_URL
from oncelog_service.cli.output import Output, forget_stdout

OK, ERROR, FAILED, INTERRUPTED = 0, 1, 2, 130
"""Exit codes. FAILED: a verification that found problems; a command line that cannot be understood ends so too."""

PATIENCE_SECONDS = 1.0
"""How long a short command tries again. People wait for it; 15 s of silence, the SDK's, would be no answer."""

Url = Annotated[str | None, typer.Option("--url", help=f"URL of the service (env ONCELOG_URL, default {DEFAULT_URL}).")]
Token = Annotated[str | None, typer.Option("--token", help="Bearer token (env ONCELOG_TOKEN, or the file ONCELOG_TOKEN_FILE).")]
Ca = Annotated[str | None, typer.Option("--ca", help="File of the CA to trust behind https (env ONCELOG_CA).")]
Cert = Annotated[str | None, typer.Option("--cert", help="File of a certificate of one's own (env ONCELOG_CERT).")]
CertKey = Annotated[
    str | None, typer.Option("--cert-key", help="File of its key, unless that is in the same file (env ONCELOG_KEY).")
]
Namespace = Annotated[str, typer.Option("--namespace", help="Namespace of the topic.")]
Json = Annotated[bool, typer.Option("--json", help="JSON on stdout and nothing else there; errors as problem JSON on stderr.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
Topic = Annotated[str, typer.Argument(help="Name of the topic.", show_default=False)]


@dataclass(slots=True)
class Session:
    """One run of a command."""

    client: Client
    namespace: str
    out: Output
    token: str | None = field(default=None, repr=False)
    """As it was given; for what does not go through the client."""
    facts: dict[str, object] = field(default_factory=dict)
    """What is known when it ends early; goes into the problem JSON."""
    so_far: Callable[[], str] = lambda: "nothing was changed"
    """What was done, for when it is interrupted."""

    def confirm(self, question: str, yes: bool) -> None:
        """Ask on stderr unless ``yes``; ends the command with 1 if the answer is no."""
        if not yes and not _asked(question):
            self.out.failure({"title": "Declined", "code": "declined", "detail": "nothing was done"}, "nothing was done")
            raise typer.Exit(ERROR)


def command(
    group: typer.Typer, name: str, *, namespaced: bool = True, patience: float = PATIENCE_SECONDS
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command. Its first parameter, a Session, gives way to --url, --token, --json and (if namespaced) --namespace."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
        shared = [_option("namespace", Namespace, DEFAULT_NAMESPACE)] if namespaced else []
        shared += [_option("url", Url, None), _option("token", Token, None), _option("ca", Ca, None)]
        shared += [_option("cert", Cert, None), _option("cert_key", CertKey, None), _option("as_json", Json, False)]

        def run(url: str | None, token: str | None, as_json: bool, **given: Any) -> None:
            namespace = given.pop("namespace") if namespaced else DEFAULT_NAMESPACE
            with _trusting(given.pop("ca"), given.pop("cert"), given.pop("cert_key")):
                session = Session(_client(url, token, patience), namespace, Output(as_json), token)
                with ending(session):
                    function(session, **given)

        as_command(group, name, run, own + shared, function.__doc__ or "")
        return function

    return register


def as_command(group: typer.Typer, name: str, run: Callable[..., None], parameters: list[inspect.Parameter], doc: str) -> None:
    """Register ``run`` as a command with these parameters, which typer reads from a function's signature."""
    keywords = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    run.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in keywords}
    run.__doc__ = doc
    group.command(name, help=inspect.cleandoc(doc))(run)


@contextmanager
def _trusting(ca: str | None, cert: str | None, key: str | None) -> Iterator[None]:
    """While a command runs, its environment says what its options do: jobs and Spark read it too. Raises BadParameter."""
    if key is not None and cert is None:
        raise typer.BadParameter("a key is of use only with its certificate: --cert", param_hint="--cert-key")
    said = {} if ca is None else {"ONCELOG_CA": ca}
    if cert is not None:
        said |= {"ONCELOG_CERT": cert, "ONCELOG_KEY": key or ""}  # a key that the environment names is another one's
    before = {name: os.environ.get(name) for name in said}
    os.environ.update(said)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def ending(session: Session) -> Iterator[None]:
    """Turn what a command raises into what it prints and its exit code."""
    try:
        with session.client:
            yield
        sys.stdout.flush()
    except BrokenPipeError:
        forget_stdout()  # its reader has enough (`| head`): not a fault
        raise typer.Exit(OK) from None
    except OncelogError as error:
        session.out.error(error, session.facts)
        raise typer.Exit(ERROR) from None
    except KeyboardInterrupt:
        detail = session.so_far()
        problem = {"title": "Interrupted", "code": "interrupted", "detail": detail, **session.facts}
        session.out.failure(problem, f"interrupted: {detail}")
        raise typer.Exit(INTERRUPTED) from None


def _asked(question: str) -> bool:
    try:
        return typer.confirm(question, err=True)
    except typer.Abort as abort:  # typer makes Ctrl-C and the end of input the same
        if isinstance(abort.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        return False


def _client(url: str | None, token: str | None, patience: float) -> Client:
    try:
        return Client(url, token=token, retry=patience)
    except ValueError as error:
        hint = "--url" if "URL" in str(error) else "--ca, --cert"
        raise typer.BadParameter(str(error), param_hint=hint) from error


def _option(name: str, annotation: Any, default: object) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
