"""Which service a command asks, and as whom: options, then the environment, then a context, then defaults. Pure.

A context is one service. Where an option or the environment names another address, nothing of the context counts: its token and
its certificate are for whom it names. Only `--context` itself goes with such options, as both were typed for the same command;
and since it is an option, what it names comes before the environment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

from oncelog.http.credentials import Secret, secret_in, shown
from oncelog.wire.media import DEFAULT_NAMESPACE, DEFAULT_URL
from oncelog_service.cli.frame.contexts import BadContexts, Context, Contexts

Source = Literal["option", "environment", "context", "default"]

OPTIONS = {
    "url": "--url",
    "token": "--token",
    "ca": "--ca",
    "cert": "--cert",
    "cert_key": "--cert-key",
    "namespace": "--namespace",
}
_VARIABLES = {
    "url": ("ONCELOG_URL",),
    "token": ("ONCELOG_TOKEN", "ONCELOG_TOKEN_FILE"),
    "ca": ("ONCELOG_CA",),
    "cert": ("ONCELOG_CERT",),
    "cert_key": ("ONCELOG_KEY",),
    "namespace": (),
}
STORES = ("leveldb", "sqlite", "memory")
"""Schemes of stores that a client opens in its own process."""
_DEFAULTS = {"url": DEFAULT_URL, "namespace": DEFAULT_NAMESPACE}


class Choice(NamedTuple):
    """A value, and where it comes from."""

    value: str | None
    source: Source
    named: str
    """What one changes to change it: an option, a variable, a context; empty for a default."""


@dataclass(frozen=True, slots=True)
class Connection:
    """What a command needs to know of its service."""

    choices: Mapping[str, Choice]
    context: Choice
    """The name of the one that counts; None: none does."""

    def __getitem__(self, name: str) -> str | None:
        return self.choices[name].value

    @property
    def url(self) -> str:
        """Of the service, or of each instance with commas between them."""
        return service_url(self["url"] or DEFAULT_URL)

    @property
    def namespace(self) -> str:
        """That of the topics that are named."""
        return self["namespace"] or DEFAULT_NAMESPACE

    def token(self) -> str | None:
        """The token itself. Raises ValueError, which does not show it: a file that should hold it does not."""
        choice = self.choices["token"]
        if choice.value is not None and choice.named == "ONCELOG_TOKEN_FILE":
            return secret_in(choice.value, choice.named)
        if choice.value is not None and choice.named.endswith(".token_file"):
            return secret_in(choice.value, f"token_file of {choice.named.removesuffix('.token_file')}")
        return choice.value

    def variables(self) -> dict[str, str]:
        """What jobs, Spark and the SDK below find in the environment, so that they go by the same choice."""
        said = {"ONCELOG_CA": self.choices["ca"], "ONCELOG_CERT": self.choices["cert"], "ONCELOG_KEY": self.choices["cert_key"]}
        return {name: each.value or "" for name, each in said.items() if each.source in ("option", "context")}


def chosen(options: Mapping[str, str | None], environment: Mapping[str, str], contexts: Callable[[], Contexts]) -> Connection:
    """What counts. ``options``: those of :data:`OPTIONS` and ``context``; ``contexts``: reads them, and is called if they matter.

    Raises BadContexts: what it raises, or the context that is named is none.
    """
    typed = bool(options.get("context"))
    named, context = Choice(None, "default", ""), None
    if typed or not (options.get("url") or environment.get("ONCELOG_URL")):
        named, context = _named(options.get("context"), environment, contexts)
    choices = {}
    for name in OPTIONS:
        layers = [_by_context(name, named.value, context), _by_environment(name, environment)]
        given = options.get(name)
        layers = [None if given is None else Choice(given, "option", OPTIONS[name]), *(layers if typed else layers[::-1])]
        choices[name] = next((each for each in layers if each is not None), Choice(_DEFAULTS.get(name), "default", ""))
    cert, key = choices["cert"], choices["cert_key"]
    if key.source != cert.source:  # a key belongs to the certificate that is named beside it
        choices["cert_key"] = Choice(None, cert.source, cert.named)
    if choices["token"].value is not None:
        choices["token"] = choices["token"]._replace(value=Secret(choices["token"].value))
    return Connection(choices, named)


def service_url(text: str) -> str:
    """Addresses as people type them, `host:port`, as URLs; with commas between them several instances of one service."""
    return ",".join(each if "://" in each or not each else f"http://{each}" for each in map(str.strip, text.split(",")))


def check_url(text: str) -> None:
    """Raises BadContexts: that is no address of a service, nor a store of this machine."""
    for each in text.split(","):
        try:
            parts = urlsplit(each)
            named = bool(parts.hostname) and len(each.split()) == 1
            good = parts.scheme in STORES or (parts.scheme in ("http", "https") and named and parts.port != 0)
        except ValueError:
            good = False
        if not good:
            raise BadContexts(f"not the URL of a service: {shown(each)!r}; it looks like {DEFAULT_URL}")


def _named(typed: str | None, environment: Mapping[str, str], contexts: Callable[[], Contexts]) -> tuple[Choice, Context | None]:
    known = contexts()
    named = Choice(None, "default", "")
    if typed:
        named = Choice(typed, "option", "--context")
    elif environment.get("ONCELOG_CONTEXT"):
        named = Choice(environment["ONCELOG_CONTEXT"], "environment", "ONCELOG_CONTEXT")
    elif known.current:
        named = Choice(known.current, "context", "current")
    return named, None if named.value is None else known.named(named.value)


def _by_environment(name: str, environment: Mapping[str, str]) -> Choice | None:
    return next((Choice(environment[each], "environment", each) for each in _VARIABLES[name] if environment.get(each)), None)


def _by_context(name: str, called: str | None, context: Context | None) -> Choice | None:
    if context is None:
        return None
    if name == "token" and context.token_file is not None:
        return Choice(context.token_file, "context", f"{called}.token_file")
    value = getattr(context, name)
    return None if value is None else Choice(value, "context", f"{called}.{name}")
