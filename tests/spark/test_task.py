"""What a task reads of its range, whatever happens to the topic meanwhile: from a topic that is played here."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from oncelog.errors import DataLost, InvalidResponse, OffsetOutOfRange, StaleMessageId, TopicNotFound
from oncelog.message_id import MessageId
from oncelog.spark.reading.offsets import Range
from oncelog.spark.reading.task import ahead, pages
from oncelog.wire.columns import MessageColumns, OffsetRun, ProducerRun, pack
from oncelog.wire.models import TopicOffsets
from tests.patience import PATIENCE, until

PAGE = 2


class Topic:
    """Answers as the service does, two offsets a page; ``then``: what happens to it before its second page is read."""

    namespace, retry_seconds = "default", 0.0

    def __init__(self, *, refuses: bool = True, before: dict[str, Any], then: dict[str, Any]) -> None:
        self.earliest, self.stable, self.generation, self.gone, self.healed_at = 0, 8, 1, False, 8
        self.hidden: tuple[int, ...] = ()
        self.refuses = refuses
        """A range that begins with what has expired, instead of passing over it: it does either."""
        vars(self).update(before)
        self.then, self.asked = then, 0

    def client(self) -> Topic:
        return self

    def read_columns(
        self, topic: str, first: int, upto: int, namespace: str, *, generation: int, properties: bool
    ) -> MessageColumns:
        self.asked += 1
        assert self.asked < 20, "it turns in a circle"
        if self.asked == 2:
            vars(self).update(self.then)
        self._check()
        if generation != self.generation:
            raise StaleMessageId("made anew")
        if upto > self.stable or (self.refuses and first < self.earliest):
            raise OffsetOutOfRange("not there")
        begin = max(first, self.earliest)
        end = max(first + 1, min(begin + PAGE, upto))
        there = [offset for offset in range(begin, end) if offset not in self.hidden]
        ids = b"".join(bytes(MessageId(offset, 0)) for offset in there)
        runs = [OffsetRun(offset, 1) for offset in there]
        return MessageColumns(end, runs, ids, [ProducerRun(None, None, 1) for _ in there], pack([b"v"] * len(there)))

    def offsets(self, asked: object, namespace: str, wait: float) -> dict[str, TopicOffsets]:
        self._check()
        time.sleep(wait)
        self.stable = max(self.stable, self.healed_at)
        return {"t": TopicOffsets(generation=self.generation, earliest=self.earliest, stable=self.stable)}

    def _check(self) -> None:
        if self.gone:
            raise TopicNotFound("t")


def read(topic: Topic, *, oldest: bool, fail: bool) -> list[int]:
    options: Any = SimpleNamespace(connection=topic, include_headers=False, fail_on_data_loss=fail)
    found = pages(options, Range("t", 0, 6, 1, oldest))
    return [offset for page in found for first, count in page.offsets for offset in range(first, first + count)]


ANEW = {"generation": 2}


@pytest.mark.parametrize("refuses", [True, False])
@pytest.mark.parametrize(
    ("oldest", "before", "then", "offsets", "loss"),
    [
        (False, {}, {}, [0, 1, 2, 3, 4, 5], ""),
        (False, {"hidden": (0, 2, 3, 5)}, {}, [1, 4], ""),
        (False, {"earliest": 3}, {}, [3, 4, 5], "offset 0 to 2 are not there"),
        (True, {"earliest": 3}, {}, [3, 4, 5], ""),
        (True, {"earliest": 9, "stable": 9}, {}, [], ""),
        (True, {}, {"earliest": 3}, [0, 1, 3, 4, 5], "offset 2 to 2 are not there"),
        (False, {}, {"earliest": 9, "stable": 9}, [0, 1], "offset 2 to 5 are not there"),
        (True, {}, ANEW, [0, 1], "created anew"),
        (True, ANEW, {}, [], "created anew"),
        (True, {}, {"gone": True}, [0, 1], "topic t was deleted: .* behind offset 2 "),
        (False, {}, {"stable": 3}, [0, 1, 2, 3, 4, 5], ""),
    ],
)
def test_a_task_reads_all_that_is_there_and_misses_what_it_should_have_read(
    refuses: bool, oldest: bool, before: dict[str, Any], then: dict[str, Any], offsets: list[int], loss: str
) -> None:
    topics = [Topic(refuses=refuses, before=before, then=then) for _ in range(2)]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert read(topics[0], oldest=oldest, fail=False) == offsets
    assert len(told) == (loss != "")
    if loss:
        with pytest.raises(DataLost, match=loss):
            read(topics[1], oldest=oldest, fail=True)
    else:
        assert read(topics[1], oldest=oldest, fail=True) == offsets


def test_what_does_not_become_stable_again_is_refused_in_the_end() -> None:
    with pytest.raises(OffsetOutOfRange):
        read(Topic(before={"healed_at": 0}, then={"stable": 3}), oldest=False, fail=False)


@pytest.mark.parametrize("next_offset", [0, 7])
def test_an_answer_that_goes_nowhere_or_too_far_is_refused(next_offset: int, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = Topic(before={}, then={})
    page = topic.read_columns("t", 0, 6, "", generation=1, properties=False)._replace(next=next_offset)
    monkeypatch.setattr(topic, "read_columns", lambda *_, **__: page)
    with pytest.raises(InvalidResponse, match=f"told to go on at {next_offset}"):
        read(topic, oldest=False, fail=True)


def items(made: list[int], *, hold: Callable[[], object] = lambda: None, fails: bool = False) -> Iterator[int]:
    for item in range(5):
        if item == 1:
            hold()
        if item == 2 and fails:
            raise DataLost("gone")
        made.append(item)
        yield item


def test_one_item_is_made_ahead_and_not_more() -> None:
    made: list[int] = []
    reading = ahead(items(made))
    assert next(reading) == 0
    until(lambda: len(made) > 1, "one is made ahead")
    time.sleep(0.05)
    assert made == [0, 1]
    assert list(reading) == [1, 2, 3, 4]


def test_a_failure_comes_after_what_was_made_before_it() -> None:
    reading = ahead(items([], fails=True))
    assert [next(reading), next(reading)] == [0, 1]
    with pytest.raises(DataLost):
        next(reading)


def test_one_who_has_enough_does_not_wait_for_what_is_under_way() -> None:
    held = threading.Event()
    reading: Any = ahead(items([], hold=lambda: held.wait(PATIENCE)))
    assert next(reading) == 0
    began = time.monotonic()
    reading.close()
    assert time.monotonic() - began < PATIENCE / 2
    held.set()
