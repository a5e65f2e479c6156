"""Where settings come from: an option goes before the environment, that before a file in TOML, and that before the default.

A secret and the file that holds it are one thing said in two ways: where a source says either, what a lower one says of both
does not count.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource, TomlConfigSettingsSource

FILE = "config"
"""The setting that names the file."""

Kind = Literal["option", "environment", "file", "default"]


class BadConfigFile(ValueError):
    """It cannot be read, or is not what such a file is."""


class Origin(NamedTuple):
    """Where a value comes from."""

    source: Kind
    named: str
    """What one changes to change it: an option, a variable, or the file; empty for a default."""


class Layer(NamedTuple):
    """What one source says."""

    source: Kind
    values: Mapping[str, Any]

    def origin(self, name: str) -> Origin:
        """Where it says so."""
        return Origin(self.source, variable(name) if self.source == "environment" else option(name))


class _FromFile(Layer):
    def origin(self, name: str) -> Origin:
        return Origin("file", str(self.values[FILE]))


class Sources(PydanticBaseSettingsSource):
    """All of them as one, which is how pydantic asks for what they say together. Raises BadConfigFile."""

    def __init__(self, kind: type[BaseSettings], given: Mapping[str, Any], secrets: Collection[str]) -> None:
        """``secrets``: settings that may lie in a file of their own."""
        super().__init__(kind)
        self._given = given
        self._other = {name: f"{name}_file" for name in secrets}
        self._other |= {file: name for name, file in self._other.items()}

    def __call__(self) -> dict[str, Any]:
        return {name: layer.values[name] for name, layer in self._said().items()}

    def origins(self) -> dict[str, Origin]:
        """Where the value of each setting comes from; of what is none but stands in a file, too."""
        said = self._said()
        found = {name: Origin("default", "") for name in self.settings_cls.model_fields}
        found |= {name: layer.origin(name) for name, layer in said.items()}
        for name, other in self._other.items():  # a secret that lies in a file comes from what names that
            if other in said and name not in said and not name.endswith("_file"):
                found[name] = said[other].origin(other)
        return found

    def in_file(self) -> Mapping[str, Any]:
        """What the file says, whether it counts or not."""
        return next((layer.values for layer in self._layers() if layer.source == "file"), {})

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """What pydantic asks a source that goes from field to field."""
        return self().get(field_name), field_name, False

    def _said(self) -> dict[str, Layer]:
        """For each setting that any says anything of, the one that counts."""
        found: dict[str, Layer] = {}
        for layer in self._layers():
            above = {name for name, higher in found.items() if higher.values[name] not in (None, "")}
            found |= {
                name: layer
                for name in layer.values
                if name not in found and self._other.get(name) not in above and not (name == FILE and layer.source == "file")
            }
        return found

    def _layers(self) -> Iterator[Layer]:
        """The highest first."""
        environment = EnvSettingsSource(self.settings_cls)()
        yield Layer("option", self._given)
        yield Layer("environment", environment)
        path = self._given.get(FILE) or environment.get(FILE)
        if path:
            yield _FromFile("file", {FILE: path, **_read(self.settings_cls, Path(path))})


def _read(kind: type[BaseSettings], path: Path) -> Mapping[str, Any]:
    try:
        if not path.exists():  # pydantic would do without it
            raise FileNotFoundError
        if path.is_dir():
            raise BadConfigFile(f"{path} is a directory")
        found = TomlConfigSettingsSource(kind, path).toml_data
    except FileNotFoundError:
        raise BadConfigFile(f"{path} is not there") from None
    except OSError as error:
        raise BadConfigFile(f"{path} cannot be read: {error.strerror}") from None
    except BadConfigFile:
        raise
    except (ValueError, RecursionError) as error:  # also of numbers and nests that are TOML, and more than Python reads
        raise BadConfigFile(f"{path} is no TOML: {error}") from None
    for name, value in found.items():
        if isinstance(value, dict):
            raise BadConfigFile(
                f"{path}, {name}: a file of settings has no tables; write each setting as docs/settings.md names it"
            )
    if FILE in found:
        raise BadConfigFile(f"{path}, {FILE}: a file of settings names no other one; remove it")
    return found


class HasOrigins(BaseSettings):
    """Settings that know where they come from."""

    @classmethod
    def origins(cls, given: Mapping[str, Any]) -> dict[str, Origin]:
        """Where the value of each comes from, with these options. Raises BadConfigFile."""
        raise NotImplementedError


def option(name: str) -> str:
    """Returns the option of a setting."""
    return "--" + name.replace("_", "-")


def variable(name: str) -> str:
    """Returns its variable of the environment."""
    return f"ONCELOG_{name.upper()}"


class Problem(NamedTuple):
    """Why a setting is none."""

    where: str
    """An option, a variable, or a file and the key in it; empty where the sentence says it, or is about several."""
    detail: str

    def __str__(self) -> str:
        return f"{self.where}: {self.detail}" if self.where else self.detail


def problems_of(error: BadConfigFile | ValidationError, kind: type[HasOrigins], given: Mapping[str, Any]) -> list[Problem]:
    """Returns what is wrong with each setting."""
    if isinstance(error, BadConfigFile):
        return [Problem("", str(error))]
    try:
        origins = kind.origins(given)
    except BadConfigFile as changed:  # the file, since it was read
        return [Problem("", str(changed))]
    return [_problem(each, origins, kind) for each in error.errors(include_url=False, include_input=False)]


def _problem(found: ErrorDetails, origins: Mapping[str, Origin], kind: type[HasOrigins]) -> Problem:
    detail = found["msg"].removeprefix("Value error, ")
    if not found["loc"]:
        return Problem("", detail)
    name = str(found["loc"][0])
    if found["type"] == "extra_forbidden":  # only in a file: options and variables that are none never get here
        likely = get_close_matches(name.lower().replace("-", "_"), kind.model_fields, 1)
        detail = "there is no such setting; " + (f"is {likely[0]} meant?" if likely else "docs/settings.md lists all")
    elif found["type"] == "bool_parsing":
        detail = "Input should be on or off"
    origin = origins.get(name, Origin("file", ""))  # of what stands in the file no more
    return Problem(f"{origin.named}, {name}" if origin.source == "file" else origin.named, detail)
