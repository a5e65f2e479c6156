"""Settings as options of commands, and in words why some are none."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Annotated, Any, Optional

import typer
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from oncelog_service.cli.values import Switch
from oncelog_service.config import Settings
from oncelog_service.sources import BadConfigFile, option, problems_of, variable

KINDS = (int, float)


def settings_from(given: Mapping[str, Any], kind: type[Settings] = Settings) -> Settings:
    """Settings with these options. Raises BadParameter for what is none in an option, the environment or the file."""
    try:
        return kind(**given)
    except (BadConfigFile, ValidationError) as error:
        problems = problems_of(error, kind, given)
    if len(problems) == 1:
        raise typer.BadParameter(problems[0].detail, param_hint=problems[0].where or None)
    raise typer.BadParameter("\n".join(map(str, problems)))


def setting_option(name: str, field: FieldInfo) -> inspect.Parameter:
    """A setting as an option."""
    default = "" if field.default is None or field.default_factory is not None else f", default {_shown(field.default)}"
    text = f"{field.description} (env {variable(name)}{default})"
    kind = Switch if field.annotation is bool else field.annotation if field.annotation in KINDS else str
    annotation = Annotated[Optional[kind], typer.Option(option(name), help=text, show_default=False)]  # type: ignore[valid-type]  # noqa: UP045
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=None)


def _shown(value: object) -> str:
    return ("on" if value else "off") if isinstance(value, bool) else str(value)
