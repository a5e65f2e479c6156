"""`oncelog cdap-import`: whatever is torn or killed, each message of a topic of CDAP's is here once, in order, with its id.

oncelog speaks the TMS page, too, so it is the source here; tests/cdap has CDAP's own server."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog import Client, Producer, Reader
from oncelog.http import connections
from oncelog.wire.avro_parts import encode_long
from oncelog.wire.avro_strict import NotAvro
from oncelog.wire.media import AVRO
from oncelog.wire.transaction import Transaction
from oncelog_service.cli.messages.cdap_import import MESSAGE_ID
from oncelog_service.cli.messages.cdap_topic import PATIENCE_SECONDS, CdapTopic, Incoming, Message
from oncelog_service.cli.messages.interrupts import Interrupts
from tests.behaviours.cli.support import run, value
from tests.rest.talk import Topic, done, hex_id
from tests.sdk.fakes import Answer, Request, fake_server
from tests.world.service import RunningService, running_service

MESSAGES = st.lists(st.builds(Message, st.binary(min_size=20, max_size=20), st.binary(max_size=200)), max_size=9)


def blocks(*found: Sequence[Message], sized: bool = False) -> bytes:
    """An Avro array of these blocks."""
    body = b""
    for block in filter(None, found):
        messages = b"".join(encode_long(len(part)) + part for each in block for part in each)
        body += encode_long(-len(block)) + encode_long(len(messages)) if sized else encode_long(len(block))
        body += messages
    return body + encode_long(0)


@given(st.lists(MESSAGES, max_size=3), st.booleans(), st.lists(st.integers(0, 2_000), max_size=8).map(sorted))
def test_however_an_array_is_cut_its_messages_come_and_its_end_is_known(
    found: list[list[Message]], sized: bool, cuts: list[int]
) -> None:
    body, incoming, came = blocks(*found, sized=sized), Incoming(), list[Message]()
    for start, end in zip([0, *cuts], [*cuts, len(body)], strict=True):
        assert not incoming.is_whole or start >= len(body)
        came += incoming.feed(body[start:end])
    assert incoming.is_whole
    assert came == [each for block in found for each in block]
    with pytest.raises(NotAvro):
        incoming.feed(b"\0")


@pytest.mark.parametrize("bad", [b"\x02\x26" + bytes(19) + b"\0", b"\x02\x01", b"\x02\x28" + bytes(20) + b"\xff" * 5 + b"\x0f"])
def test_what_are_no_messages_is_refused(bad: bytes) -> None:
    with pytest.raises(NotAvro):
        Incoming().feed(bad)


# --- from one service to another


class Killed(BaseException):
    """The command is stopped, and says nothing."""


@pytest.fixture
def theirs() -> Iterator[Topic]:
    with running_service(foreign_write_pointers=True, max_transaction_lifetime_seconds=1e10) as service:
        yield Topic(service.url, "orders")


@pytest.fixture
def ours(theirs: Topic) -> Iterator[RunningService]:
    with running_service() as service, Client(service.url) as client:
        client.create_topic("moved")
        yield service


def ids_and_payloads(topic: Topic) -> list[tuple[str, bytes]]:
    return [(hex_id(each["id"]), each["payload"].encode("latin-1")) for each in topic.read(limit={"int": 10_000})]


def imported(service: RunningService) -> list[tuple[str, bytes]]:
    with Reader("moved", start="earliest", timeout=0, url=service.url) as reader:
        return [(each.properties[MESSAGE_ID], each.payload) for each in reader]


def cdap_import(theirs: Topic, ours: RunningService, *options: str) -> dict[str, object]:
    found: dict[str, object] = value(run("cdap-import", theirs.url, "moved", "--json", *options, url=ours.url))
    return found


def test_all_are_there_in_order_with_their_ids_and_run_again_it_goes_on(theirs: Topic, ours: RunningService) -> None:
    for number in range(5):
        done(theirs.publish(*(f"{number}.{each}\x00\xff" for each in range(300))))
        theirs.store_under(5 + number, "in", "a", "group")
        theirs.publish_under(5 + number)
    first = cdap_import(theirs, ours)
    assert (first["stored"], first["producer"], first["last_sequence_id"]) == (1_515, "cdap:default:orders", 1_514)
    assert imported(ours) == ids_and_payloads(theirs)
    again = cdap_import(theirs, ours)
    assert (again["stored"], again["skipped"], again["duplicates"]) == (0, 1, 0)
    done(theirs.publish("late"))
    assert cdap_import(theirs, ours, "--after", "00" * 20)["stored"] == 1, "known is known better"
    assert imported(ours) == ids_and_payloads(theirs)


@pytest.mark.parametrize("ends_after", [0, 1, 2, 5, 9])
def test_a_run_that_ends_anywhere_is_gone_on_with(
    theirs: Topic, ours: RunningService, monkeypatch: pytest.MonkeyPatch, ends_after: int
) -> None:
    for number in range(8):
        done(theirs.publish(*(f"{number}.{each}" for each in range(40))))
    feed, fed = Incoming.feed, count()

    def ends(self: Incoming, piece: bytes) -> list[Message]:
        if next(fed) == ends_after:
            raise Killed
        return feed(self, piece)

    with monkeypatch.context() as patched:
        patched.setattr(connections, "_HEAD_BYTES", 1_000)
        patched.setattr(connections, "_PART_BYTES", 1_000)
        patched.setattr(Incoming, "feed", ends)
        with pytest.raises(Killed):
            run("cdap-import", theirs.url, "moved", url=ours.url)
    cdap_import(theirs, ours)
    assert imported(ours) == ids_and_payloads(theirs)


def test_answers_that_break_off_or_do_not_come_are_gone_on_with(theirs: Topic, ours: RunningService) -> None:
    for number in range(5):
        done(theirs.publish(*(f"{number}.{each}" for each in range(40))))
    answers = [0]

    def torn(request: Request) -> Answer | None:
        if request.method == "GET":
            return Answer(405)
        found = theirs.post("/poll", request.body, AVRO)
        answers[0] += 1
        match answers[0] % 4:
            case 1:
                return Answer(200, found.content[: answers[0] * 700], found_headers, len(found.content))
            case 2:
                return None
            case 3:
                return Answer(503)
        return Answer(200, found.content[:-1] if answers[0] < 5 else found.content, found_headers)

    found_headers = {"content-type": AVRO}
    with fake_server(torn) as server:
        address = server.url + "/v1/namespaces/default/topics/orders"
        assert value(run("cdap-import", address, "moved", "--json", url=ours.url))["stored"] == 200
    assert imported(ours) == ids_and_payloads(theirs)
    assert answers[0] >= 5


def test_they_come_however_long_it_takes_to_publish_those_before(theirs: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        done(theirs.publish(*(f"{number}.{each}" for each in range(40))))
    monkeypatch.setattr(connections, "_HEAD_BYTES", 1_000)
    monkeypatch.setattr(connections, "_PART_BYTES", 1_000)
    with Interrupts() as interrupts, closing(CdapTopic(theirs.url, None, interrupts)) as topic:
        found = []
        for some in topic.messages(None, pytest.fail):
            found += [(each.id.hex(), each.payload) for each in some]
            time.sleep(PATIENCE_SECONDS + 1)
    assert found == ids_and_payloads(theirs)


def test_a_server_that_was_never_there_is_told_at_once(ours: RunningService) -> None:
    found = run("cdap-import", "http://127.0.0.1:1/v1/namespaces/default/topics/orders", "moved", url=ours.url)
    assert (found.exit_code, "cannot be reached" in found.stderr) == (3, True)
    assert run("cdap-import", "http://127.0.0.1:1/orders", "moved", url=ours.url).exit_code == 2


def test_where_the_last_one_has_expired_there_nothing_behind_it_is_left_out(theirs: Topic, ours: RunningService) -> None:
    """CDAP's server leaves out what it is asked to begin at, where that has expired."""
    done(theirs.publish("a", "b"))
    cdap_import(theirs, ours)
    done(theirs.publish("c", "d", "e"))
    done(theirs.request("POST", "/trim", json={"beforeOffset": 3}))

    def forgetful(request: Request) -> Answer:
        if request.body.startswith(b"\0"):
            return Answer(200, blocks([Message(bytes.fromhex(id_), payload) for id_, payload in ids_and_payloads(theirs)[1:]]))
        return Answer(200, theirs.post("/poll", request.body, AVRO).content)

    with fake_server(forgetful) as server:
        found = run("cdap-import", server.url + theirs.url.removeprefix(theirs.base), "moved", "--json", url=ours.url)
    assert (value(found)["stored"], value(found)["expired"]) == (2, True)
    assert [payload for _, payload in imported(ours)] == [b"a", b"b", b"d", b"e"]


@pytest.mark.parametrize(("more", "code", "said"), [(0, 1, "another topic"), (1, 6, "sequence_reused")])
def test_another_topic_under_the_same_producer_is_refused(
    theirs: Topic, ours: RunningService, more: int, code: int, said: str
) -> None:
    """Whether it has a message with the very id where the import stopped, or not."""
    other = Topic(theirs.base, "others")
    done(theirs.publish("a", "b"))
    done(other.publish(*["other"] * (1 + more)))
    cdap_import(theirs, ours)
    refused = run("cdap-import", other.url, "moved", "--producer", "cdap:default:orders", url=ours.url)
    assert (refused.exit_code, said in refused.stderr) == (code, True)
    assert [payload for _, payload in imported(ours)] == [b"a", b"b"]


def test_where_the_last_one_is_gone_here_it_has_to_be_said(theirs: Topic, ours: RunningService) -> None:
    done(theirs.publish("a", "b", "c"))
    (*_, third), behind = ids_and_payloads(theirs), ["moved", "--json", "--after"]
    cdap_import(theirs, ours)
    assert run("cdap-import", theirs.url, *behind, "ff" * 20, url=ours.url).exit_code == 1, "that would leave messages out"
    with Client(ours.url) as client:
        client.trim_topic("moved", 3)
    gone = run("cdap-import", theirs.url, "moved", url=ours.url)
    assert (gone.exit_code, "--after" in gone.stderr) == (1, True)
    done(theirs.publish("d"))
    assert value(run("cdap-import", theirs.url, *behind, third[0], url=ours.url))["stored"] == 1
    assert [payload for _, payload in imported(ours)] == [b"d"]


def test_a_transaction_says_what_is_imported(theirs: Topic, ours: RunningService, tmp_path: Path) -> None:
    done(theirs.publish("plain"))
    theirs.roll_back(theirs.publish_under(7, "rolled back"))
    theirs.publish_under(8, "committed")
    theirs.publish_under(9, "in progress")
    (view := tmp_path / "view").write_bytes(Transaction(100, 100, in_progress=[9]).to_bytes())
    assert cdap_import(theirs, ours, "--transaction", str(view))["stored"] == 2
    assert [payload for _, payload in imported(ours)] == [b"plain", b"committed"]
    with Client(ours.url) as client:
        client.delete_topic("moved")
        client.create_topic("moved")
    cdap_import(theirs, ours)
    assert imported(ours) == ids_and_payloads(theirs)
    assert len(imported(ours)) == 4


@pytest.mark.parametrize("first", ["with", "without"])
def test_a_run_that_would_read_in_another_way_than_those_before_it_is_refused(
    theirs: Topic, ours: RunningService, tmp_path: Path, first: str
) -> None:
    """What was rolled back would stay, or be missing."""
    done(theirs.publish("plain"))
    theirs.roll_back(theirs.publish_under(7, "rolled back"))
    (view := tmp_path / "view").write_bytes(Transaction(100, 100).to_bytes())
    ways = {"with": ["--transaction", str(view)], "without": []}
    cdap_import(theirs, ours, *ways.pop(first))
    ((_, other),) = ways.items()
    before = imported(ours)
    refused = run("cdap-import", theirs.url, "moved", *other, url=ours.url)
    assert (refused.exit_code, f"was imported {first} --transaction: go on {first} it" in refused.stderr) == (1, True)
    assert imported(ours) == before


def test_it_is_said_whether_what_is_not_committed_came_too(theirs: Topic, ours: RunningService, tmp_path: Path) -> None:
    (view := tmp_path / "view").write_bytes(Transaction(100, 100).to_bytes())
    for options, isolation in ([], "uncommitted"), (["--transaction", str(view)], "committed"):
        assert cdap_import(theirs, ours, *options)["isolation"] == isolation
        said = run("cdap-import", theirs.url, "moved", *options, url=ours.url).stderr
        assert ("--transaction leaves it out" in said) is (isolation == "uncommitted")


@pytest.mark.parametrize("cdap_clients", [False, True])
def test_a_topic_that_was_made_anew_there_is_refused(ours: RunningService, cdap_clients: bool) -> None:
    """Its messages are younger than all of the other one, so that ids do not tell."""
    with running_service(cdap_clients=cdap_clients) as service:
        theirs = Topic(service.url, "orders")
        done(theirs.publish("a"))
        cdap_import(theirs, ours)
        done(theirs.request("DELETE"))
        done(Topic(service.url, "orders").publish("b"))
        refused = run("cdap-import", theirs.url, "moved", url=ours.url)
    assert (refused.exit_code, "was deleted and made anew" in refused.stderr) == (6, True)
    assert [payload for _, payload in imported(ours)] == [b"a"]


def test_a_generation_that_is_not_told_again_is_remembered(theirs: Topic, ours: RunningService) -> None:
    told = [b'{"ttl": "5", "generation": "3"}', b"{}", b'{"generation": "4"}']
    """As CDAP's server answers."""

    def generations(request: Request) -> Answer:
        if request.method == "GET":
            return Answer(200, told.pop(0))
        return Answer(200, theirs.post("/poll", request.body, AVRO).content)

    with fake_server(generations) as server:
        for code in 0, 0, 6:
            done(theirs.publish("one"))
            ended = run("cdap-import", server.url + theirs.url.removeprefix(theirs.base), "moved", url=ours.url)
            assert ended.exit_code == code, ended.stderr


def test_an_import_of_before_there_was_more_to_know_than_the_id_is_gone_on_with(theirs: Topic, ours: RunningService) -> None:
    done(theirs.publish("a", "b"))
    ((id_, _), _) = ids_and_payloads(theirs)
    with Producer("moved", name="cdap:default:orders", url=ours.url) as producer:
        producer.send(b"a", properties={MESSAGE_ID: id_})
    assert cdap_import(theirs, ours)["stored"] == 1
    assert imported(ours) == ids_and_payloads(theirs)


@pytest.mark.parametrize("is_first", [True, False])
def test_a_message_that_the_target_does_not_take_is_named(theirs: Topic, is_first: bool) -> None:
    done(theirs.publish(*([] if is_first else ["small", "small"]), "x" * 2_000, "small"))
    big = next(id_ for id_, payload in ids_and_payloads(theirs) if len(payload) == 2_000)
    with running_service(max_request_bytes=1_500) as service, Client(service.url) as client:
        client.create_topic("moved")
        refused = run("cdap-import", theirs.url, "moved", url=service.url)
        assert (refused.exit_code, f"message {big} of" in refused.stderr) == (1, True), refused.stderr
        assert "a larger --max-request-bytes, and run this again" in refused.stderr
        assert "fewer" not in refused.stderr
        assert len(imported(service)) == (0 if is_first else 2)


def test_of_a_topic_that_is_not_there_it_is_said_on_which_side(theirs: Topic, ours: RunningService) -> None:
    for address, topic, side in (theirs.url + "x", "moved", "source"), (theirs.url, "orders", "target"):
        missing = run("cdap-import", address, topic, url=ours.url)
        assert (missing.exit_code, f"the {side} is not there" in missing.stderr) == (4, True), missing.stderr
