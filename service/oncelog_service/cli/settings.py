"""Settings as options of commands, and in words why some are none."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Annotated, Any, NamedTuple, Optional

import typer
from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from oncelog_service.cli.values import Switch
from oncelog_service.config import Settings
from oncelog_service.sources import BadConfigFile, Origin, option, variable

KINDS = (int, float)


def settings_from(given: Mapping[str, Any], kind: type[Settings] = Settings) -> Settings:
    """Settings with these options. Raises BadParameter for what is none in an option, the environment or the file."""
    try:
        return kind(**given)
    except (BadConfigFile, ValidationError) as error:
        problems = problems_of(error, given, kind)
    if len(problems) == 1:
        raise typer.BadParameter(problems[0].detail, param_hint=problems[0].where or None)
    raise typer.BadParameter("\n".join(map(str, problems)))


class Problem(NamedTuple):
    """Why a setting is none."""

    where: str
    """An option, a variable, or a file and the key in it; empty where the sentence says it, or is about several."""
    detail: str

    def __str__(self) -> str:
        return f"{self.where}: {self.detail}" if self.where else self.detail


def problems_of(error: BadConfigFile | ValidationError, given: Mapping[str, Any], kind: type[Settings]) -> list[Problem]:
    """Returns what is wrong with each setting."""
    if isinstance(error, BadConfigFile):
        return [Problem("", str(error))]
    origins = kind.origins(given)
    return [_problem(each, origins, kind) for each in error.errors(include_url=False, include_input=False)]


def _problem(found: ErrorDetails, origins: Mapping[str, Origin], kind: type[Settings]) -> Problem:
    detail = found["msg"].removeprefix("Value error, ")
    if not found["loc"]:
        return Problem("", detail)
    name = str(found["loc"][0])
    if found["type"] == "extra_forbidden":  # only in a file: options and variables that are none never get here
        likely = get_close_matches(name.lower().replace("-", "_"), kind.model_fields, 1)
        detail = "there is no such setting; " + (f"is {likely[0]} meant?" if likely else "docs/settings.md lists all")
    elif found["type"] == "bool_parsing":
        detail = "Input should be on or off"
    origin = origins[name]
    return Problem(f"{origin.named}, {name}" if origin.source == "file" else origin.named, detail)


def setting_option(name: str, field: FieldInfo) -> inspect.Parameter:
    """A setting as an option."""
    default = "" if field.default is None or field.default_factory is not None else f", default {_shown(field.default)}"
    text = f"{field.description} (env {variable(name)}{default})"
    kind = Switch if field.annotation is bool else field.annotation if field.annotation in KINDS else str
    annotation = Annotated[Optional[kind], typer.Option(option(name), help=text, show_default=False)]  # type: ignore[valid-type]  # noqa: UP045
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=None)


def _shown(value: object) -> str:
    return ("on" if value else "off") if isinstance(value, bool) else str(value)
