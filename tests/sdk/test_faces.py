"""The classes that users see: their arguments are written out and explained, and those for threads are made from asyncio's."""

from __future__ import annotations

import inspect
import re
import runpy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from oncelog import (
    AsyncAtomicBatch,
    AsyncConsumer,
    AsyncProducer,
    AsyncReader,
    AsyncTransactionContext,
    AtomicBatch,
    Consumer,
    Outbox,
    Producer,
    Reader,
    TransactionContext,
)
from oncelog.values.outgoing import outgoing

FACES = Path(__file__).resolve().parents[2] / "sdk" / "faces.py"

SENDS = [
    Producer.send,
    Producer.send_async,
    AsyncProducer.send,
    AsyncProducer.send_async,
    AtomicBatch.send,
    AsyncAtomicBatch.send,
    TransactionContext.send,
    AsyncTransactionContext.send,
    Outbox.add,
]
EXPLAINED = [
    *SENDS,
    Producer.__init__,
    Producer.send_batch,
    AsyncProducer.__init__,
    AsyncProducer.send_batch,
    Reader.__init__,
    Reader.seek,
    Reader.read,
    AsyncReader.__init__,
    AsyncReader.seek,
    AsyncReader.read,
    *(each for kind in (Consumer, AsyncConsumer) for each in (kind.__init__, kind.read, kind.seek, kind.ack, kind.ack_async)),
]


def made(**how: Any) -> Mapping[Path, str]:
    files: Mapping[Path, str] = runpy.run_path(str(FACES))["made"](**how)
    assert len(files) >= 2
    return files


def test_what_is_made_from_asyncios_faces_is_as_they_are() -> None:
    """Save for imports and format. Else: ``make faces``."""

    def squeezed(text: str) -> str:
        return re.sub(r"[\s,]", "", text[text.index("\nclass ") :])

    for path, text in made(form=str).items():
        assert squeezed(path.read_text("utf-8")) == squeezed(text), f"make faces: {path.name} is not what would be made"


@pytest.mark.real
def test_it_is_as_they_are_to_the_byte() -> None:
    for path, text in made().items():
        assert path.read_text("utf-8") == text, f"make faces: {path.name} is not what would be made"


@pytest.mark.parametrize("call", EXPLAINED, ids=range(len(EXPLAINED)))
def test_a_call_writes_its_arguments_out_and_explains_each(call: Callable[..., Any]) -> None:
    args = inspect.cleandoc(call.__doc__ or "").partition("Args:\n")[2].partition("\n\n")[0]
    explained = re.findall(r"^    ((?:\w+, )*\w+): ", args, re.MULTILINE)
    assert [name for each in explained for name in each.split(", ")] == [*inspect.signature(call).parameters][1:]


@pytest.mark.parametrize("send", SENDS, ids=range(len(SENDS)))
def test_each_way_to_send_takes_what_a_message_takes(send: Callable[..., Any]) -> None:
    known, known_types = inspect.signature(outgoing).parameters, get_type_hints(outgoing)
    types = get_type_hints(send)
    for name, each in inspect.signature(send).parameters.items():
        if each.kind is inspect.Parameter.KEYWORD_ONLY and name in known and name != "codec":
            assert (each.default, types[name]) == (known[name].default, known_types[name])
