"""Publishes and stores of CDAP's own clients, which may bring more messages than others (bounds/cdap.py)."""

from __future__ import annotations

from oncelog.errors import RequestTooLarge
from oncelog.wire.media import AVRO, essence
from oncelog.wire.requests import PublishRequest
from oncelog_service.bounds.cdap import MESSAGES, announced, weight
from oncelog_service.bounds.turns import Sizes
from oncelog_service.rest.cdap import check_pointer
from oncelog_service.rest.routes import Call


def sizes_of(call: Call) -> Sizes:
    """As how much a publish takes its turn; none: as its body."""
    if not _may_bring_more(call):
        return ()
    return (((call.path["namespace"], call.path["topic"]), weight(call.body, call.service.settings.max_messages)),)


def check_of_cdap(call: Call, request: PublishRequest) -> None:
    """To be asked of every publish and store where CDAP's clients are served, whoever sends it.

    Raises RequestTooLarge: it has more messages than its turn was taken for; TransactionNotInProgress as cdap.check_pointer.
    """
    most = call.service.settings.max_messages
    if len(request.payloads) > most and not (_may_bring_more(call) and announced(call.body) > most):
        raise RequestTooLarge(
            f"{len(request.payloads)} messages in one request; {most} are the most, or {MESSAGES} in one block of {AVRO}",
            limit=most,
        )
    check_pointer(request.write_pointer, call.agent)


def _may_bring_more(call: Call) -> bool:
    return call.service.settings.cdap_clients and essence(call.content_type) == AVRO
