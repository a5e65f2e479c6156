"""Large publish requests are joined by hand: to the byte what Avro's own writer makes of them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncelog.wire import codec
from oncelog.wire.media import ONCELOG_AVRO
from oncelog.wire.requests import PublishRequest

payloads = st.lists(st.binary(max_size=5), min_size=codec._MANY, max_size=codec._MANY + 40)


def columns(count: int) -> st.SearchStrategy[dict[str, Sequence[object]]]:
    def of(values: st.SearchStrategy[object]) -> st.SearchStrategy[list[object]]:
        return st.lists(values, min_size=count, max_size=count)

    numbers = of(st.integers(0, 2**63 - 1)) | st.integers(0, 2**40).map(lambda first: list(range(first, first + count)))
    return st.fixed_dictionaries(
        {},
        optional={
            "producer": st.text(max_size=3),
            "epoch": st.integers(0, 9),
            "sequence_ids": numbers,
            "keys": of(st.none() | st.binary(max_size=5)),
            "properties": of(st.none() | st.dictionaries(st.text(max_size=2), st.text(max_size=2), max_size=2)),
            "ttls": of(st.none() | st.integers(1, 9)),
            "write_pointer": st.integers(1, 2**62),
            "expected_offset": st.integers(0, 9),
            "expected_last_message_id": st.binary(min_size=20, max_size=20),
            "expected_key_offsets": st.dictionaries(st.text(max_size=2), st.none() | st.integers(0, 9), max_size=2),
        },
    )


@settings(max_examples=50)
@given(st.data())
def test_many_messages_are_encoded_as_avro_does(data: st.DataObject) -> None:
    messages = data.draw(payloads)
    request = PublishRequest(messages, **data.draw(columns(len(messages))))  # type: ignore[arg-type]
    body = codec.encode_publish_request(request)
    assert body == codec.encode("PublishRequest", ONCELOG_AVRO, codec._publish_record(request))


def test_a_payload_that_is_no_bytes_is_no_message() -> None:
    for count in (1, codec._MANY):
        with pytest.raises((TypeError, ValueError)):
            codec.encode_publish_request(PublishRequest(["text"] * count))  # type: ignore[list-item]
