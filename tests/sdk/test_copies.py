"""What belongs to the process that made it is neither pickled nor copied, and says so; values are both."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
from sqlalchemy import create_engine

import oncelog
from oncelog import AsyncClient, AsyncConsumer, AsyncProducer, AsyncReader, Client, Consumer, Outbox, Producer, Reader
from tests.world.service import RunningService

NOT_OURS = {"Message", "MessageId", "OncelogError", "Receipt", "TransactionAware"}
"""Values, which may be copied, and what others write."""


@pytest.mark.parametrize("duplicate", [pickle.dumps, copy.copy, copy.deepcopy])
def test_what_lives_in_this_process_is_not_duplicated(house: RunningService, duplicate: Callable[[Any], Any]) -> None:
    engine, outbox = create_engine("sqlite://"), Outbox("o")
    with ExitStack() as stack:
        client = stack.enter_context(Client(house.url))
        client.create_topic("t", exist_ok=True)
        producer = stack.enter_context(Producer[bytes]("t", client=client))
        reader, consumer = Reader[bytes]("t", client=client), Consumer[bytes]("t", "s", client=client)
        ones: list[Any] = [reader, consumer]
        for each in ones:
            stack.enter_context(each)
        ones += [client, producer, client.transaction(), client.atomic(), client.atomic_branch("i"), producer.send_async(b"x")]
        ones += [outbox, oncelog.OutboxRelay(outbox, engine), oncelog.SqlParticipant(engine, "r"), oncelog.Checkpoint("c", "t")]
        other = AsyncClient(house.url)
        ones += [other, AsyncProducer("t", client=other), AsyncReader("t", client=other), AsyncConsumer("t", "s", client=other)]
        ones += [other.transaction(), other.atomic(), other.atomic_branch("i")]
        for each in ones:
            with pytest.raises(TypeError, match=f"^{type(each).__name__} can be neither pickled nor copied"):
                duplicate(each)
    public = {kind for name in oncelog.__all__ if name not in NOT_OURS and inspect.isclass(kind := getattr(oncelog, name))}
    assert public <= {*map(type, ones)}
