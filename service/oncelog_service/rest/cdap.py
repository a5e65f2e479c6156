"""What CDAP's own clients need and the TMS page does not say, where the setting for them is on (`cdap_clients`).

They do not say that a topic's properties are JSON, and read them back as a bare map of texts, with a generation that fits an int.
They keep ids of messages for years, and ask with them for ever, whatever became of the topic. Of a write pointer that can be none
any more they want to hear as of a failure of the service, not of their own. And they follow no redirect of a large body.

Which properties are kept without a meaning here is said in properties.py; a poll for everything is in handlers/cdap_polls.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from oncelog.errors import TransactionNotInProgress
from oncelog.wire.media import AVRO, JSON, essence
from oncelog.wire.requests import ConsumeRequest
from oncelog_service.log.topic_log import TopicLog
from oncelog_service.properties import MAX_TTL, TTL
from oncelog_service.rest.routes import TOPIC, Route

_TYPE = b"content-type"


_PUTS = (TOPIC, TOPIC + "/properties")
_AT_THE_TOPIC = (*_PUTS, *(TOPIC + path for path in ("/publish", "/store", "/rollback", "/poll")))


def typed(route: Route, headers: Mapping[bytes, bytes]) -> Mapping[bytes, bytes]:
    """The same headers; but what is put to a topic without a type is JSON."""
    untyped = route.method == "PUT" and route.path in _PUTS and _TYPE not in headers
    return {**headers, _TYPE: JSON.encode()} if untyped else headers


def names_json(accept: str) -> bool:
    """Whether an Accept header names JSON, as whoever knows our shape of a topic does."""
    return JSON in map(essence, accept.split(","))


def is_passed_on(route: Route, headers: Mapping[bytes, bytes]) -> bool:
    """Whether a request that another instance must answer is passed on to it, and not redirected: it is one of CDAP's, as far as
    its types show."""
    media = essence(headers.get(_TYPE, b"").decode("latin-1"))
    return route.path in _AT_THE_TOPIC and media in ("", AVRO)


def shown(properties: Mapping[str, str]) -> dict[str, str]:
    """A topic's properties. A ttl of an older version of oncelog may not fit an int: it is as good as the longest one."""
    return {**properties, TTL: properties[TTL] if int(properties[TTL]) <= MAX_TTL else str(MAX_TTL)}


def check_pointer(pointer: int | None, agent: str) -> None:
    """Raises TransactionNotInProgress for a write pointer that is no time; under 500 to whoever comes by Java's own HTTP client.

    CDAP's clients do. That of 5.1.2 shows either status as an IOException; that of 6.10 shows 409 so, and takes 500, 502 and 504
    alone for a failure of the service, which CDAP's own tests of it ask for.
    """
    if pointer is not None and pointer <= 0:
        refused = TransactionNotInProgress(
            f"write pointer {pointer} is older than a transaction may become: one is greater than 0", write_pointer=pointer
        )
        if "Java/" in agent:
            vars(refused)["status"] = 500
        raise refused


def from_moment(log: TopicLog, request: ConsumeRequest) -> ConsumeRequest:
    """A poll from an id that is no place in the topic any more, as one from the moment after which all is new to who asks."""
    start = request.start_from
    if not isinstance(start, bytes):
        return request
    moment = log.topic.moment_of(start)
    return request if moment is None else replace(request, start_from=moment, inclusive=True)
