"""Makes the faces of the SDK for threads from those for asyncio: ``make faces``, that is ``python sdk/faces.py``.

A face is a class that users see. The one for asyncio is written by hand; the one for threads is the same text without ``async``
and ``await``, under the names in ``NAMES``. What differs on purpose stands in the hand-written file, side by side:

* Below a line ``# threads:`` the comments that are indented as that line are the text for threads.
* From a line ``# asyncio:`` to a line ``# both:`` the text is for asyncio alone.

A class whose values are of the type of its codec needs an overload of its constructor for each kind of codec. They are made here,
too, in both files, between ``# overloads…`` and ``# fmt: on``, from the constructor behind them.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

SDK = Path(__file__).resolve().parent / "oncelog"

FACES = {
    "aio/consumer.py": "reading/consumer.py",
    "aio/producer.py": "producing/producer.py",
    "aio/reader.py": "reading/reader.py",
}
"""The file of the asyncio face → that of the face for threads."""

NAMES = {
    r"\basync (?=def|with|for)": "",
    r"\bawait (self\._(?:acknowledge|begin|let_go|seek)\(.*\))": r"drive(\1)",  # procedures, which both await
    r"\bawait ": "",
    r"\bAsync(?=(Acknowledging|Api|Consumer|Producer|Reader|Sender|Stream)\b)": "",
    r"\b__a(?=(enter|exit)__)": "__",
    r"\basyncio\.Future\b": "Future",
    r"\boncelog\.aio\.sending\b": "oncelog.producing.sending",
    r"\boncelog\.aio\.(?=(acknowledging|stream)\b)": "oncelog.reading.",
    r"\boncelog\.api\.topics import Api\b": "oncelog.api.api import Api",
}
"""What is called otherwise in a thread."""

CODECS = {"{}[V]": "Typed[V] = None", "{}[str]": "Text", "{}[Any]": "Untyped"}
"""The kinds of a class by what its codec says of its values."""

HEADER = "# Made from sdk/oncelog/{} by `make faces`: change that one.\n"
_OVERLOADS = re.compile(r"( +)# overloads, made by `make faces`\n +# fmt: off\n(?:.*\n)*? +# fmt: on\n")


def for_threads(text: str) -> str:
    """Return the face for threads."""
    text = "".join(f"{line}\n" for line in _chosen(text.splitlines()))
    for pattern, name in NAMES.items():
        text = re.sub(pattern, name, text)
    return text


def _chosen(lines: list[str]) -> Iterator[str]:
    """Yield the lines that are for threads."""
    part, comment = "both", ""
    for line in lines:
        marker = re.fullmatch(r"( *)# (threads|asyncio|both):", line)
        if marker is not None:
            part, comment = marker[2], f"{marker[1]}#"
        elif part == "threads" and line.startswith(comment):
            yield comment[:-1] + line.removeprefix(comment).removeprefix(" ")
        elif part != "asyncio":
            part = "both"
            yield line


def with_overloads(text: str) -> str:
    """Return the file with the overloads of its constructors."""
    for kind in ast.parse(text).body:
        if isinstance(kind, ast.ClassDef):
            whole = "\n".join(text.splitlines()[kind.lineno - 1 : kind.end_lineno])
            made = _OVERLOADS.sub(lambda match, kind=kind: _overloads(kind, match[1]), whole)  # type: ignore[misc]
            text = text.replace(whole, made)
    return text


def _overloads(kind: ast.ClassDef, indent: str) -> str:
    *_, constructor = (each for each in kind.body if isinstance(each, ast.FunctionDef) and each.name == "__init__")
    first, *others = (_argument(each) for each in constructor.args.args)
    named = zip(constructor.args.kwonlyargs, constructor.args.kw_defaults, strict=True)
    options = {each.arg: _argument(each) + (f" = {ast.unparse(default)}" if default else "") for each, default in named}
    lines = ["# overloads, made by `make faces`", "# fmt: off"]
    for of, codec in CODECS.items():
        myself = first if of.endswith("[V]") else f"{first}: {of.format(kind.name)}"
        given = ", ".join([myself, *others, "*", *(options | {"codec": f"codec: {codec}"}).values()])
        wrapped = [each.replace("\0", " ") for each in textwrap.wrap(given.replace(" ", "\0").replace(",\0", ", "), 118)]
        lines += ["@overload", "def __init__(", *(f"    {each}" for each in wrapped), ") -> None: ..."]
    return "".join(f"{indent}{line}\n" for line in [*lines, "# fmt: on"])


def _argument(argument: ast.arg) -> str:
    return argument.arg if argument.annotation is None else f"{argument.arg}: {ast.unparse(argument.annotation)}"


def formatted(text: str) -> str:
    """Return a file as ruff has it: imports that are used, in their order."""
    for command in (["check", "--quiet", "--fix-only", "--select", "I,F401"], ["format", "--quiet"]):
        arguments = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(SDK / "made.py"), "-"]
        text = subprocess.run(arguments, input=text, capture_output=True, text=True, check=True).stdout
    return text


def made(form: Callable[[str], str] = formatted) -> dict[Path, str]:
    """Return each file that is made, wholly or in part, with what it is to be. ``form`` gives what is made whole its format."""
    files: dict[Path, str] = {}
    for asyncio, threads in FACES.items():
        source = with_overloads((SDK / asyncio).read_text("utf-8"))
        files[SDK / asyncio] = source
        files[SDK / threads] = HEADER.format(asyncio) + form(for_threads(source))
    return files


if __name__ == "__main__":
    for path, text in made().items():
        path.write_text(text, "utf-8")
