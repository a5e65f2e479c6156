"""What a command asks for, made of a job's signature and docstring, so that neither is written twice. Pure."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Annotated, Any, get_args, get_type_hints

import typer

NOT_ASKED = frozenset({"session", "spark", "given", "url", "namespace", "token", "token_file", "options", "on_progress", "span"})
"""What every command has from its session, and what only programs can say."""
_METAVARS = {"topics": "TOPIC", "path": "PATH", "source": "PATH", "to": "PATH", "checkpoint": "PATH", "report": "FILE"}
_TYPES_ONLY = dict.fromkeys(("DataFrame", "SparkSession", "StreamingQuery"), str)
"""What a job imports for type checkers alone."""


def parameters(command: Callable[..., None], *jobs: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters of ``command`` and then those of the jobs, each an option or argument for typer.

    What the command says of a parameter itself – its annotation, its default, its help – goes before what a job says.
    """
    found: dict[str, inspect.Parameter] = {}
    texts: dict[str, str] = {}
    for job in jobs:
        kinds = get_type_hints(job, localns=_TYPES_ONLY)
        for each in inspect.signature(job).parameters.values():
            found.setdefault(each.name, each.replace(annotation=kinds[each.name]))
        texts = described(job) | texts
    own = inspect.signature(command, eval_str=True).parameters
    both = {name: _over(mine, found.get(name)) for name, mine in own.items()} | {n: f for n, f in found.items() if n not in own}
    return [_asked(each, texts.get(name, "")) for name, each in both.items() if name not in NOT_ASKED]


def _over(mine: inspect.Parameter, theirs: inspect.Parameter | None) -> inspect.Parameter:
    return mine.replace(default=theirs.default) if theirs is not None and mine.default is mine.empty else mine


def _asked(parameter: inspect.Parameter, text: str) -> inspect.Parameter:
    kind, name, default = parameter.annotation, parameter.name, parameter.default
    plain, info = get_args(kind) if hasattr(kind, "__metadata__") else (kind, typer.Option(f"--{name.replace('_', '-')}"))
    info.help = info.help or text
    info.metavar = _METAVARS.get(name)
    info.show_default = default not in (None, False, parameter.empty)
    if plain is int:
        info.min = 1
    return parameter.replace(kind=parameter.KEYWORD_ONLY, annotation=Annotated[plain, info])


def described(job: Callable[..., Any]) -> dict[str, str]:
    """What a docstring says of each parameter under ``Args:``, on one line."""
    _, _, arguments = inspect.cleandoc(job.__doc__ or "").partition("\nArgs:\n")
    entries = re.findall(r"^    (\w+): (.*(?:\n        .*)*)", arguments.partition("\n\n")[0], re.MULTILINE)
    return {name: " ".join(text.replace("``", "").split()) for name, text in entries}
