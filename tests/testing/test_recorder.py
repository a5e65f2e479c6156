"""What consumers and producers did, held against a log: with transactions, keys and codecs on it."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from typing import Any

import pytest

from oncelog import Consumer, Message, Producer, Reader, errors
from oncelog.testing import NotExactlyOnce, OncelogService, Recorder, check_effects, check_published, service
from oncelog.testing.committed import committed
from oncelog.wire.requests import PublishRequest

pytestmark = pytest.mark.real

ORDERS = [{"order": at, "by": "ann" if at % 2 else "bob"} for at in range(6)]


@pytest.fixture(scope="module")
def kit() -> Iterator[OncelogService]:
    """With a topic of orders: six that are committed, two of them in a transaction, and one that was rolled back."""
    with service() as made:
        client = made.client
        client.create_topic("orders")
        client.create_topic("none")
        with Producer("orders", name="desk", client=client, codec="json") as producer:
            for each in ORDERS[:4]:
                producer.send(each, key=each["by"])
        with client.transaction() as tx:
            tx.send("orders", b'{"order": 98}')
            tx.checkpoint()
            tx.abort()
        with client.transaction() as tx:
            for at in (4, 5):
                tx.send("orders", b'{"order": %d}' % at, key=ORDERS[at]["by"], properties={"sure": "yes"})
                tx.checkpoint()
        yield made


def wrong(kit: OncelogService, effects: list[Any], **options: Any) -> dict[str, list[Any]]:
    """What is wrong, by its kind."""
    try:
        kit.check_effects("orders", effects, **options)
    except NotExactlyOnce as error:
        found: dict[str, list[Any]] = {}
        for each in error.findings:
            found.setdefault(each.kind, []).append(each.says)
        return found
    return {}


def test_the_committed_view_is_what_a_consumer_is_given(kit: OncelogService) -> None:
    found = committed(kit.client, "orders", "default")
    with Consumer("orders", "looking", client=kit.client) as consumer:
        given = consumer.read(100, timeout=0)
    assert [message.offset for message in found] == [message.offset for message in given] == [0, 1, 2, 3, 5, 6]
    for one, other in zip(found, given, strict=True):
        for name in ("payload", "message_id", "key", "properties", "producer"):
            assert getattr(one, name) == getattr(other, name)
    assert [message.sequence_id for message in found[:4]] == [0, 1, 2, 3]


def test_effects_are_told_in_any_form_that_names_their_message(kit: OncelogService) -> None:
    messages = committed(kit.client, "orders", "default")
    first, second, third, fourth, fifth, sixth = messages
    told = [first, second.message_id, bytes(third.message_id), str(fourth.message_id), fifth.offset, sixth]
    assert wrong(kit, told) == {}
    assert wrong(kit, [each.value["order"] for each in committed(kit.client, "orders", "default", "json")][::-1]) != {}
    known = {"by": lambda message: message.value["order"], "codec": "json"}
    assert wrong(kit, [0, 1, 2, 3, 4, 5], **known) == {}
    with Reader("orders", client=kit.client, codec="json", start="earliest", timeout=0, isolation="uncommitted") as reader:
        assert wrong(kit, list(reader), **known) == {"unknown": ["effect 5 (offset 4) is of no committed message of the topic"]}


def test_a_message_of_another_topic_is_none_of_this_one_whatever_its_id_is(kit: OncelogService) -> None:
    messages = committed(kit.client, "orders", "default")
    here = messages[1]._source
    for elsewhere, named in (
        (here._replace(topic="others"), "default/others, generation 1"),
        (here._replace(generation=7), "default/orders, generation 7"),
    ):
        foreign = Message(messages[1]._record, source=elsewhere)
        found = wrong(kit, [messages[0], foreign, *messages[2:]])
        assert found["unknown"] == [f"effect 2 (offset 1 of {named}) is of no committed message of the topic"]
        assert list(found) == ["lost", "unknown"]
        assert "unknown" in wrong(kit, [foreign], by=lambda message: message.payload)


def test_what_names_no_message_is_refused(kit: OncelogService) -> None:
    for wrong_one in (1.5, None, True, b"short", "no id"):
        with pytest.raises((TypeError, ValueError), match=r"message id|by="):
            kit.check_effects("orders", [wrong_one])


def test_each_kind_is_told_with_message_producer_and_number(kit: OncelogService) -> None:
    """Offset 4 was rolled back."""
    messages = {message.offset: message.message_id for message in committed(kit.client, "orders", "default")}
    desk = [
        f"offset {at} (message {messages[at]}, producer 'desk', sequence id {at}, key b'{ORDERS[at]['by']}')" for at in range(4)
    ]
    assert wrong(kit, [0, 3, 1, 2, 2, 4, 5, 6]) == {
        "reordered": [f"{desk[1]} had its effect behind that of {desk[3]}, which comes after it (effect 3 (1))"],
        "doubled": [f"{desk[2]} had its effect 2 times: effect 4 (2) and effect 5 (2)"],
        "unknown": ["effect 6 (4) is of no committed message of the topic"],
    }
    assert wrong(kit, [1, 2, 3, 5, 6]) == {"lost": [f"{desk[0]} had no effect"]}


def test_order_counts_within_a_key_or_among_all_or_not_at_all(kit: OncelogService) -> None:
    other_keys, same_key = [1, 0, 2, 3, 5, 6], [2, 0, 1, 3, 5, 6]
    assert wrong(kit, other_keys) == {}
    assert list(wrong(kit, other_keys, per_key=False)) == ["reordered"]
    assert list(wrong(kit, same_key)) == ["reordered"]
    assert wrong(kit, same_key, ordered=False) == wrong(kit, same_key, per_key=False, ordered=False) == {}


def test_what_lies_behind_the_end_that_is_asked_for_may_still_come(kit: OncelogService) -> None:
    assert wrong(kit, [0, 1, 2], upto=3) == {}
    assert len(wrong(kit, [0, 1], upto=3)["lost"]) == 1
    assert wrong(kit, [0, 1, 2, 3, 5], upto=3) == {}


def test_rows_are_held_against_the_log(kit: OncelogService) -> None:
    known = {"by": lambda message: message.value["order"], "codec": "json"}
    kit.check_published("orders", range(6), **known)
    with pytest.raises(NotExactlyOnce) as told:
        kit.check_published("orders", [0, 2, 1, 3, 4, 7], **known)
    assert [(each.kind, each.identity) for each in told.value.findings] == [("lost", 7), ("reordered", 2), ("unknown", 5)]
    assert told.value.findings[1].says.startswith("row 1 (2) lies behind row 2 (1), which comes after it: offset 2 (message ")
    kit.check_published("orders", [5, 4, 3, 2, 1, 0], ordered=False, **known)


def test_rows_are_values_that_json_has_and_effects_what_is_made_of_them(kit: OncelogService) -> None:
    kit.client.create_topic("nested")
    rows: list[Any] = [{"order": [1, {"of": 2}], "by": None}, ["a", 1.5], "text", True]
    with Producer("nested", client=kit.client, codec="json") as producer:
        producer.send_batch(rows)
    kit.check_published("nested", rows, codec="json")
    kit.check_effects("nested", rows, by=lambda message: message.value, codec="json")
    with pytest.raises(NotExactlyOnce) as told:
        kit.check_published("nested", [{**rows[0], "by": "ann"}, *rows[1:]], codec="json")
    lost, unknown = told.value.findings
    assert lost.says == "row 0 ({'order': [1, {'of': 2}], 'by': 'ann'}) is not in the log"
    assert unknown.says.startswith("{'order': [1, {'of': 2}], 'by': None} at offset 0 (message ")


def test_nothing_is_not_checked(kit: OncelogService) -> None:
    for check in (lambda: kit.check_effects("none", []), lambda: kit.check_published("orders", [])):
        with pytest.raises(AssertionError, match="nothing was checked"):
            check()
    with pytest.raises(errors.TopicNotFound):
        kit.check_effects("nowhere", [])


def test_any_service_can_be_looked_at(kit: OncelogService) -> None:
    recorder = Recorder(kit.client, "orders", ordered=False)
    for offset in (6, 5, 3, 2, 1, 0):
        recorder(offset)
    recorder.verify()
    check_effects(kit.client, "orders", recorder.effects, ordered=False)
    with pytest.raises(NotExactlyOnce, match="6 lost"):
        check_published(kit.client, "orders", range(100, 106))


def test_what_has_gone_may_have_had_its_effect_once() -> None:
    with service() as kit:
        kit.client.create_topic("t")
        with Producer("t", client=kit.client) as producer:
            for ttl in (None, None, 60, None):
                producer.send(b"x", ttl=ttl)
        seen = committed(kit.client, "t", "default")
        kit.pass_time(3_600)
        kit.client.trim_topic("t", 1)
        assert [each.offset for each in committed(kit.client, "t", "default")] == [1, 3]
        for form in (lambda each: each, attrgetter("message_id"), attrgetter("offset")):
            told = [form(each) for each in seen]
            kit.check_effects("t", told)
            with pytest.raises(NotExactlyOnce, match=r"messages from offset 1 on, .* 2 doubled"):
                kit.check_effects("t", [*told, form(seen[0]), form(seen[2])])
        kit.check_effects("t", seen, by=lambda message: message.offset)
        with pytest.raises(NotExactlyOnce, match="2 unknown"):
            kit.check_effects("t", [0, 1, 2, 3], by=lambda message: message.offset)
        with pytest.raises(NotExactlyOnce, match="from offset 1 on, does not hold the 4 rows exactly once: 2 lost"):
            kit.check_published("t", [0, 1, 2, 3], by=lambda message: message.offset)
        after_all = bytes(seen[3].message_id)[:-1] + b"\x09"
        for unknown in (4, -1, after_all):
            with pytest.raises(NotExactlyOnce, match="1 unknown"):
                kit.check_effects("t", [*seen, unknown])


class Later(list[int]):
    """Effects that go on while the log is looked at."""

    def __init__(self, kit: OncelogService) -> None:
        super().__init__([0])
        self._kit = kit

    def __iter__(self) -> Iterator[int]:
        found = list(super().__iter__())
        self._kit.client.publish("t", PublishRequest([b"later"]))
        self.append(len(self))
        return iter(found)


def test_what_comes_while_it_looks_is_not_taken_for_an_effect_of_nothing() -> None:
    with service() as kit:
        kit.client.create_topic("t")
        kit.client.publish("t", PublishRequest([b"x"]))
        kit.check_effects("t", Later(kit), upto=1)


def test_what_cannot_be_looked_up_is_told_with_what_to_say() -> None:
    with service() as kit:
        kit.client.create_topic("t")
        with Producer("t", client=kit.client, codec="json") as producer:
            producer.send({"order": 1})
        for wrong_one in (
            lambda: kit.check_published("t", [{1}]),
            lambda: kit.check_published("t", [[{1}]]),
            lambda: kit.check_published("t", [1], codec="json", by=lambda message: set(message.value.values())),
            lambda: kit.check_effects("t", [{1}], codec="json", by=lambda message: message.value["order"]),
        ):
            with pytest.raises(TypeError, match=r"\{1\} cannot be looked up: say by="):
                wrong_one()
