"""Messages of a topic: found, shown as what they are, erased, followed; and whatever hostile ones say is text."""

from __future__ import annotations

import io
import json
import struct
import time
import zlib
from collections.abc import Callable
from typing import Any

import fastavro
import pytest
from playwright.sync_api import Locator, Page, expect

from oncelog import Producer
from tests.console.browsing import IN_A_BROWSER, assert_accessible
from tests.rest.talk import Calls, Topic, hex_id
from tests.world.service import RunningService

pytestmark = IN_A_BROWSER

Show = Callable[..., Page]

SCHEMA: dict[str, Any] = {
    "type": "record", "name": "Flight", "namespace": "air",
    "fields": [
        {"name": "number", "type": "long"}, {"name": "from", "type": "string"}, {"name": "late", "type": ["null", "double"]},
        {"name": "stops", "type": {"type": "array", "items": "string"}},
        {"name": "seats", "type": {"type": "map", "values": "int"}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["JET", "PROP"]}},
        {"name": "next", "type": ["null", "air.Flight"]}, {"name": "raw", "type": "bytes"},
        {"name": "tag", "type": {"type": "fixed", "name": "Tag", "size": 2}}, {"name": "on", "type": "boolean"},
        {"name": "share", "type": "float"},
    ],
}  # fmt: skip
FLIGHT: dict[str, Any] = {
    "number": 2**62 + 1, "from": "Zürich", "late": 2.5, "stops": ["a", "b"], "seats": {"y": -3}, "kind": "PROP", "next": None,
    "raw": b"\xff\x00", "tag": b"\x01\x02", "on": True, "share": 0.5,
}  # fmt: skip
AS_SHOWN = {**FLIGHT, "number": str(2**62 + 1), "raw": "0xff00", "tag": "0x0102"}


@pytest.fixture(scope="module")
def topic(service: RunningService) -> Topic:
    """Sixty numbered messages with five keys."""
    topic = Topic(service.url, "many")
    for part in (range(50), range(50, 60)):
        topic.send("p", *part, payload="message {}", keys=[f"k{each % 5}" for each in part])
        time.sleep(0.01)  # the second part is published at another time
    return topic


def offsets(page: Page) -> list[str]:
    return page.locator("li.message .offset").all_inner_texts()


def choose(page: Page, what: str, label: str = "", value: str = "") -> None:
    page.get_by_label("Show", exact=True).and_(page.locator("select")).select_option(what)
    if label:
        page.get_by_role("textbox", name=label).fill(value)
    page.get_by_role("button", name="Show", exact=True).click()


def payload(page: Page, at: int = 0) -> Locator:
    return page.get_by_label("Payload", exact=True).and_(page.locator("pre")).nth(at)


def test_messages_are_found_by_place_id_and_time(topic: Topic, show: Show) -> None:
    page = show("messages/default/many")
    messages = page.locator("li.message")
    expect(messages).to_have_count(50)
    assert offsets(page)[0] == "59", "the newest is the first"
    page.get_by_role("link", name="Older messages").click()
    expect(messages.first).to_contain_text("message 0")
    choose(page, "an offset", "Offset", "17")
    expect(messages.first).to_contain_text("message 17")
    assert page.url.endswith("#/messages/default/many?from=offset&value=17"), "whoever is sent this sees the same"
    stored = topic.read(startOffset=52, limit=1)[0]
    choose(page, "a message id", "Message id", hex_id(stored["id"]))
    expect(messages.first).to_contain_text("message 52")
    ms = struct.unpack(">Q", stored["id"].encode("latin-1")[:8])[0]
    choose(page, "a time", "Time", str(ms))
    expect(messages.first).to_contain_text("message 50")  # of the page before, too, message 59 is the last
    expect(messages.last).to_contain_text("message 59")
    choose(page, "a time", "Time", "2999-01-01 00:00")
    expect(page.get_by_text("No messages from there on.")).to_be_visible()
    choose(page, "an offset", "Offset", "x")
    expect(page.get_by_role("alert").filter(has_text="x is no whole number")).to_be_visible()
    choose(page, "a message id", "Message id", "beef")
    expect(page.get_by_role("alert").filter(has_text="invalid_")).to_be_visible()
    choose(page, "the oldest")
    expect(messages.first).to_contain_text("message 0")
    assert_accessible(page)


def test_messages_of_a_key_are_searched_for_and_it_is_said_how_far_that_is(topic: Topic, show: Show) -> None:
    page = show("messages/default/many?from=key&value=k3")
    expect(page.get_by_text("Looked at 60 of 60 messages from the oldest on: 12 found.")).to_be_visible()
    assert offsets(page) == [str(each) for each in range(60) if each % 5 == 3]
    choose(page, "those of a key", "Key", "0x6b34")
    expect(page.locator("li.message").first).to_contain_text("message 4")
    choose(page, "those of a key", "Key", "none")
    expect(page.get_by_text("0 found.")).to_be_visible()


def test_a_search_goes_over_many_pages_and_is_stopped(service: RunningService, show: Show) -> None:
    topic = Topic(service.url, "deep")
    for _ in range(5):
        topic.publish(*["x"] * 1_000, keys=["other"] * 999 + ["wanted"]).raise_for_status()
    page = show("messages/default/deep?from=key&value=wanted")
    expect(page.get_by_text("Looked at 5,000 of 5,000 messages from the oldest on: 5 found.")).to_be_visible()
    page.route("**/poll", lambda route: None)  # which is never answered
    page.get_by_role("button", name="Again").click()
    expect(page.get_by_text("Looking at 0 of 5,000 messages")).to_be_visible()
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_text("Looked at 0 of 5,000 messages")).to_be_visible()
    expect(page.get_by_role("button", name="Again")).to_be_visible()


def test_a_payload_is_shown_as_it_looks_or_as_one_says(service: RunningService, show: Show) -> None:
    topic = Topic(service.url, "kinds")
    long = json.dumps({"number": 1, "list": [1.50, []], "long": 12345678901234567890, "text": "a" * 100})
    topic.publish('{"short": [1, 2]}', long, "plain ü".encode().decode("latin-1"), "\xff\xfe\x00A").raise_for_status()
    page = show("messages/default/kinds?from=oldest")
    expect(payload(page, 0)).to_have_text('{"short": [1, 2]}')
    expect(payload(page, 1)).to_have_text(
        '{\n  "number": 1,\n  "list": [\n    1.5,\n    []\n  ],\n  "long": 12345678901234567890,\n  "text": "'
        + "a" * 100
        + '"\n}'
    )
    expect(payload(page, 2)).to_have_text("plain ü")
    expect(payload(page, 3)).to_contain_text("000000  ff fe 00 41")
    kind = page.get_by_label("Payload", exact=True).and_(page.locator("select"))
    kind.select_option("hex")
    expect(payload(page, 2)).to_contain_text("70 6c 61 69 6e 20 c3 bc")
    kind.select_option("JSON")
    expect(payload(page, 0)).to_have_text('{\n  "short": [\n    1,\n    2\n  ]\n}')
    expect(page.locator("li.message").nth(2)).to_contain_text("It is no JSON")
    kind.select_option("text")
    expect(payload(page, 0)).to_have_text('{"short": [1, 2]}')
    expect(page.locator("li.message").nth(3)).to_contain_text("These bytes are no UTF-8.")
    assert_accessible(page)


def test_an_avro_file_in_a_payload_is_read_by_the_schema_that_it_carries(service: RunningService, show: Show) -> None:
    topic = Topic(service.url, "file")
    for codec in ("null", "deflate"):
        file = io.BytesIO()
        fastavro.writer(file, SCHEMA, [FLIGHT, {**FLIGHT, "late": None, "next": FLIGHT}], codec=codec)
        topic.publish(file.getvalue().decode("latin-1")).raise_for_status()
    page = show("messages/default/file?from=oldest")
    for at in (0, 1):
        expect(page.locator("li.message").nth(at)).to_contain_text("Avro, ")
        assert json.loads(payload(page, at).inner_text()) == [AS_SHOWN, {**AS_SHOWN, "late": None, "next": AS_SHOWN}]


def test_avro_without_its_schema_is_read_by_one_that_is_pasted(service: RunningService, show: Show) -> None:
    value = io.BytesIO()
    fastavro.schemaless_writer(value, SCHEMA, FLIGHT)
    data = value.getvalue().decode("latin-1")
    endless = "\xfe\xff\xff\xff\x0f"  # so many items follow
    Topic(service.url, "bare").publish(data, data[:-1], data + "x", endless).raise_for_status()
    page = show("messages/default/bare?from=oldest")
    page.get_by_label("Payload", exact=True).and_(page.locator("select")).select_option("Avro")
    messages = page.locator("li.message")
    expect(messages.nth(0)).to_contain_text("paste its schema")
    page.get_by_label("Avro schema").fill("{")
    expect(page.get_by_text("The schema is no JSON")).to_be_visible()
    page.get_by_label("Avro schema").fill(json.dumps(SCHEMA))
    expect(messages.nth(0)).to_contain_text("Avro, ")
    assert json.loads(payload(page, 0).inner_text()) == AS_SHOWN
    expect(messages.nth(1)).to_contain_text("the bytes end within a value")
    expect(messages.nth(2)).to_contain_text("1 bytes are left behind the value")
    assert_accessible(page)
    page.get_by_label("Avro schema").fill('{"type": "array", "items": "null"}')
    expect(messages.nth(3)).to_contain_text("it is more than is shown")


def test_what_became_of_a_messages_transaction_is_said(calls: Calls, service: RunningService, show: Show) -> None:
    topic = Topic(service.url, "decided")
    pointers = [calls.good("POST", "/v1/transactions", json={})["writePointer"] for _ in range(3)]
    for pointer in pointers:
        topic.publish_under(pointer, f"under {pointer}")
    calls.good("POST", f"/v1/transactions/{pointers[0]}/commit", json={})
    calls.good("POST", f"/v1/transactions/{pointers[1]}/abort", json={})
    page = show("messages/default/decided?from=oldest")
    first, last = page.locator("li.message").first, page.locator("li.message").last
    expect(first).to_contain_text("committed")
    expect(last).to_contain_text("in progress")
    last.get_by_role("button", name="Row").click()
    row = last.get_by_role("region", name="Row at offset 2")
    expect(row).to_contain_text(f"Write pointer{pointers[2]}")
    expect(row).to_contain_text("What became of itin progress")
    last.get_by_role("link", name=str(pointers[2])).first.click()
    page.wait_for_url(f"**#/transactions/{pointers[2]}")


def test_a_message_is_erased_by_who_types_its_offset(service: RunningService, show: Show) -> None:
    topic = Topic(service.url, "secrets")
    topic.publish("harmless", "a secret", properties=[None, {"name": "Mme X"}]).raise_for_status()
    page = show("messages/default/secrets?from=oldest")
    page.get_by_role("button", name="Erase the message at offset 1").click()
    dialog = page.get_by_role("dialog", name="Erase the message at offset 1?")
    assert_accessible(page)
    dialog.get_by_label("Type 1 to go on").fill("1")
    dialog.get_by_role("button", name="Erase").click()
    expect(page.locator("li.message").nth(1)).to_contain_text("erased")
    expect(page.get_by_text("a secret")).to_have_count(0)
    assert [each["payload"] for each in topic.read(startOffset=0)] == ["harmless", ""]


def test_messages_are_followed_as_they_come_until_one_stops(service: RunningService, show: Show) -> None:
    topic = Topic(service.url, "live")
    topic.publish("before").raise_for_status()
    page = show("messages/default/live?from=live")
    log = page.get_by_role("log")
    with page.expect_request("**/poll"):
        pass
    topic.publish("one", "two").raise_for_status()
    expect(log.locator("li.message")).to_have_count(2)
    assert page.locator("li.message pre").all_inner_texts() == ["two", "one"]
    topic.publish("three").raise_for_status()
    expect(log.locator("li.message").first).to_contain_text("three")
    page.get_by_role("button", name="Stop").click()
    topic.publish("four").raise_for_status()
    expect(page.get_by_role("button", name="Go on")).to_be_visible()
    page.get_by_role("button", name="Go on").click()
    with page.expect_request("**/poll"):
        pass
    topic.publish("five").raise_for_status()
    expect(log.locator("li.message").first).to_contain_text("five")
    assert "before" not in log.inner_text()
    assert "four" not in log.inner_text(), "nothing was asked for meanwhile"
    assert_accessible(page)


def test_of_more_than_can_be_followed_the_newest_are_shown_and_it_is_said_how_many_are_left_out(
    service: RunningService, show: Show
) -> None:
    topic = Topic(service.url, "flood")
    page = show("messages/default/flood?from=live")
    with page.expect_request("**/poll"):
        pass
    topic.publish(*["x"] * 999, "the last one").raise_for_status()
    expect(page.locator("li.message").first).to_contain_text("the last one")
    expect(page.get_by_text("600 came too fast and are left out.")).to_be_visible()
    assert offsets(page) == [str(each) if each < 1000 else f"{each:,}" for each in range(999, 799, -1)]


def test_a_live_tail_keeps_no_more_than_a_tab_can_hold(service: RunningService, show: Show) -> None:
    topic = Topic(service.url, "large")
    page = show("messages/default/large?from=live")
    messages = page.locator("li.message")
    for at in range(3):
        with page.expect_request("**/poll"):
            pass
        topic.publish(*["x" * 2**20] * 7).raise_for_status()
        expect(messages.first.locator(".offset")).to_have_text(str(7 * at + 6))
    # The newest one and 16 MiB: as many come in seven pages as are asked for.
    expect(messages).to_have_count(17)
    assert offsets(page) == [str(each) for each in range(20, 3, -1)]


def container(schema: Any, codec: str, *blocks: bytes) -> str:
    """A file of Avro with these blocks of one value each."""
    file = io.BytesIO()
    fastavro.writer(file, schema, [], codec=codec, sync_marker=b"m" * 16)
    made = file.getvalue()
    for block in blocks:
        size = io.BytesIO()
        fastavro.schemaless_writer(size, "long", len(block))
        made += b"\x02" + size.getvalue() + block + b"m" * 16
    return made.decode("latin-1")


def test_a_small_payload_cannot_become_so_much_that_the_page_is_lost(service: RunningService, show: Show) -> None:
    nulls = b"\xf0\x8a\x0c\x00"  # an array of 99,000 items that have no bytes
    packer = zlib.compressobj(wbits=-15)
    zeros = packer.compress(b"\x80\x80\x80\x01" + bytes(2**20)) + packer.flush()
    topic = Topic(service.url, "amplified")
    for each in (
        container({"type": "array", "items": "null"}, "null", *[nulls] * 2_000),
        container("bytes", "deflate", *[zeros] * 500),
        "[" * 20_000 + "]" * 20_000,
        "[0.5," + '"' + "\\n" * 1_000_000 + '"]',
    ):
        topic.publish(each).raise_for_status()
    with Producer("amplified", url=service.url) as producer:
        producer.send(large := b"\xff" * 7 * 2**20 + b"1" * 20)
    page = show("messages/default/amplified?from=oldest")
    messages = page.locator("li.message")
    for at, shown in enumerate(("hex, ", "hex, ", "JSON, 39.1 KiB", "JSON, 1.91 MiB")):
        expect(messages.nth(at)).to_contain_text(shown)
    messages.nth(2).get_by_role("button", name="Show more").click()
    assert len(payload(page, 2).inner_text()) < 4_000_000
    page.get_by_role("link", name="Newer messages").click()
    expect(messages.first).to_contain_text("hex, 7 MiB")
    messages.first.get_by_role("button", name="Show more").click()
    expect(messages.first.get_by_role("button", name="Show more")).to_have_count(0)
    assert 1_900_000 < len(payload(page).inner_text()) < 2_100_000, "a browser takes seconds to lay out all of it"
    with page.expect_download() as saved:
        messages.first.get_by_role("button", name="Save all bytes").click()
    assert saved.value.suggested_filename == "message-4.bin"
    assert saved.value.path().read_bytes() == large


def test_an_address_that_names_a_part_of_every_object_shows_the_newest(topic: Topic, show: Show) -> None:
    for word in ("__proto__", "constructor", "toString"):
        page = show(f"messages/default/many?from={word}&value=1")
        expect(page.locator("li.message")).to_have_count(50)
        assert offsets(page)[0] == "59"


HOSTILE = "<img src=x onerror='window.harmed=1'><script>window.harmed=1</script>\"'`&lt;${window.harmed=1}"


def test_whatever_messages_say_is_text(calls: Calls, service: RunningService, show: Show) -> None:
    topic = Topic(service.url, "hostile")
    properties = [{HOSTILE: HOSTILE, "__proto__": HOSTILE, "constructor": HOSTILE}]
    payloads = [HOSTILE, json.dumps({HOSTILE: [HOSTILE], "__proto__": {"constructor": None, "type": "script"}})]
    topic.publish(*payloads, keys=[HOSTILE] * 2, properties=properties * 2).raise_for_status()
    page = show("messages/default/hostile?from=oldest")
    expect(payload(page, 0)).to_have_text(HOSTILE)
    expect(page.locator("li.message").first.locator("strong").first).to_have_text(HOSTILE)
    expect(page.locator("li.message").first).to_contain_text(f"{HOSTILE} = {HOSTILE}")
    expect(page.locator("li.message").first).to_contain_text(f"__proto__ = {HOSTILE}")
    page.get_by_role("button", name="Row at offset 0").click()
    expect(page.get_by_role("region", name="Row at offset 0")).to_contain_text("Payload bytes")
    choose(page, "those of a key", "Key", HOSTILE)
    expect(page.locator("li.message")).to_have_count(2)
    for address in (f"messages/{HOSTILE}/{HOSTILE}", f"{HOSTILE}", f"topics/default/{HOSTILE}", "transactions/<img src=x>"):
        page.evaluate("where => { location.hash = '#/' + where.split('/').map(encodeURIComponent).join('/') }", address)
        page.locator("h1").wait_for()
    assert page.evaluate("[window.harmed ?? null, document.querySelectorAll('main img, main script').length]") == [None, 0]
