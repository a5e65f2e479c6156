"""The code of oncelog, carried to executors and Connect servers that do not have it.

Pickling the whole package by value (``cloudpickle.register_pickle_by_value``) ends at its first lock, "cannot pickle
'_thread.RLock' object"; and each task would have classes of its own, so that ``except`` clauses and the connection kept between
tasks (``connection.py``) miss each other. So the package travels as a zip (190 kB) inside a data source that is pickled by value,
and is imported from there where it arrives: 0.15 s, once in a worker process.
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import platform
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from copy import copy
from importlib import import_module, invalidate_caches
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, TypeVar

from pyspark.sql.datasource import DataSource

PACKAGE = "oncelog"

T = TypeVar("T")
Arrival = Callable[[Callable[[], Any]], Any]
"""Calls a function once the package is installed, and answers what it answers."""


def packed() -> bytes:
    """The package as a zip: the same bytes for the same code."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, file in sorted(_walk(files(PACKAGE), PACKAGE), key=lambda found: found[0]):
            archive.writestr(zipfile.ZipInfo(path), file.read_bytes(), zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def _walk(folder: Traversable, path: str) -> Iterator[tuple[str, Traversable]]:
    for entry in folder.iterdir():
        inside = f"{path}/{entry.name}"
        if entry.is_dir() and entry.name != "__pycache__":
            yield from _walk(entry, inside)
        elif entry.is_file():
            yield inside, entry


def shipped() -> type[DataSource]:
    """The data source ``oncelog``, which brings the package with it wherever it, its readers and its writers are unpickled.

    What is nested in here, in :func:`_arrival` and in :func:`_parts` has no name that could be imported, so cloudpickle takes it
    by value, the package included (once per pickle). So it must not call what this module defines at its top, which would be
    taken by its name, and uses the standard library alone until ``install`` has run.
    """
    installed_first = _arrival(packed(), str(import_module(PACKAGE).__version__))
    carried = _parts(installed_first)

    class Carried(DataSource):
        """Asks the data source of the package, once that is there."""

        @classmethod
        def name(cls) -> str:
            return "oncelog"

        def __getstate__(self) -> dict[str, Any]:
            """With plain text for options: those that the package has shaded could not be unpickled before it is installed."""
            options = copy(self.options)
            options.update({name: str(value) for name, value in options.items()})
            return {**vars(self), "options": options}

        def installed(self) -> DataSource:
            module = installed_first(lambda: import_module("oncelog.spark.data_source"))
            source: DataSource = module.OncelogDataSource(self.options)
            return source

        def schema(self) -> Any:
            return self.installed().schema()

        def reader(self, schema: Any) -> Any:
            return carried(self.installed().reader(schema))

        def streamReader(self, schema: Any) -> Any:  # noqa: N802  # Spark's name
            return carried(self.installed().streamReader(schema))

        def writer(self, schema: Any, overwrite: bool) -> Any:
            return carried(self.installed().writer(schema, overwrite))

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802  # Spark's name
            return carried(self.installed().streamWriter(schema, overwrite))

    return Carried


def _arrival(package: bytes, version: str) -> Arrival:
    """What calls a function once the package is imported where it arrives."""

    needed = ("httptools", "certifi", "fastavro", "pydantic", "pyarrow")

    def install() -> None:
        """Have ``import oncelog`` give this version; what is installed here will do if it is of the same."""
        try:
            if getattr(import_module("oncelog"), "__version__", None) == version:
                return
        except ImportError:
            pass
        for name in [name for name in sys.modules if name == "oncelog" or name.startswith("oncelog.")]:
            del sys.modules[name]
        sys.path.insert(0, on_disk())
        invalidate_caches()

    def on_disk() -> str:
        """A file of this user alone; all workers on a host share it."""
        path = os.path.join(tempfile.gettempdir(), f"oncelog-{os.getuid()}-{hashlib.sha256(package).hexdigest()[:16]}.zip")
        handle, draft = tempfile.mkstemp(prefix="oncelog-", suffix=".zip")
        with os.fdopen(handle, "wb") as file:
            file.write(package)
        try:
            os.replace(draft, path)  # another process that reads it goes on with the file it opened; the bytes are the same
        except OSError:  # it is another user's
            return draft
        return path

    def installed_first(load: Callable[[], Any]) -> Any:
        """What ``load`` gives; one sentence where a package that oncelog is made with is not installed."""
        try:
            install()
            return load()
        except ModuleNotFoundError as error:
            raise ImportError(
                f"oncelog's data source needs the package {error.name} wherever Spark's Python runs, and {platform.node()} "
                f"({sys.executable}) has it not; there, pip install {' '.join(needed)}",
                name=error.name,
            ) from None

    return installed_first


def _parts(installed_first: Arrival) -> Callable[[T], T]:
    """What makes of a reader or a writer one that installs the package when it is unpickled."""

    def arrive(state: bytes) -> Any:
        return installed_first(lambda: pickle.loads(state))

    def carried(part: T) -> T:
        plain = type(part)

        def reduce(self: Any, protocol: Any) -> tuple[Any, ...]:
            bare = object.__new__(plain)
            vars(bare).update(vars(self))
            return arrive, (pickle.dumps(bare),)

        part.__class__ = type(plain.__name__, (plain,), {"__module__": plain.__module__, "__reduce_ex__": reduce})
        return part

    return carried
