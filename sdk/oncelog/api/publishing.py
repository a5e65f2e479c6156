"""The calls that publish, plainly or under a write pointer. :class:`oncelog.Producer` and transactions are what one wants."""

from __future__ import annotations

from oncelog.api.calls import Calls, decoded, topic_path
from oncelog.api.plausible import check_receipts
from oncelog.errors import RequestTooLarge
from oncelog.http.silence import Again
from oncelog.wire.codec import decode_published, encode_publish_request, encode_publish_response
from oncelog.wire.media import DEFAULT_NAMESPACE, ONCELOG_AVRO
from oncelog.wire.requests import PublishRequest, PublishResponse, ReceiptRun

_AGAIN = Again()


class PublishCalls(Calls):
    """What a topic takes."""

    async def publish(self, topic: str, request: PublishRequest, namespace: str = DEFAULT_NAMESPACE) -> list[ReceiptRun]:
        """Send one publish request, once and never again; :class:`oncelog.Producer` is what one wants.

        Of several instances one that stands still is asked behind, whatever ``retry`` is, where the messages have a producer's
        numbers: once another one serves the topic, that is a ResponseTimeout, and who sends the request again reaches that one.
        """
        return (await self._send_messages(topic_path(namespace, topic) + "/publish", request)).receipts

    async def publish_transactional(
        self, topic: str, request: PublishRequest, namespace: str = DEFAULT_NAMESPACE
    ) -> PublishResponse:
        """Send one publish request with a write pointer, once; its answer is what :meth:`rollback` takes.

        Without messages it publishes what :meth:`store` has put under the pointer, as one group, in the order of storing.
        Without a producer, sequence ids that rise by one make it safe to repeat; they are the write pointer's on this topic.
        Raises StoredGroupPublished, TransactionNotInProgress, ProducerInTransaction, TransactionalMismatch.
        """
        return await self._send_messages(topic_path(namespace, topic) + "/publish", request)

    async def store(self, topic: str, request: PublishRequest, namespace: str = DEFAULT_NAMESPACE) -> PublishResponse:
        """Store messages under a write pointer without making them appear yet; sent once. Their receipts carry no id.

        Raises as :meth:`publish_transactional` does.
        """
        return await self._send_messages(topic_path(namespace, topic) + "/store", request)

    async def rollback(self, topic: str, response: PublishResponse, namespace: str = DEFAULT_NAMESPACE) -> None:
        """Undo one :meth:`publish_transactional` by its answer; idempotent. Raises RollbackRefused."""
        path, body = topic_path(namespace, topic) + "/rollback", encode_publish_response(ONCELOG_AVRO, response)
        await self._call("POST", path, body, ONCELOG_AVRO, idempotent=True)

    async def _send_messages(self, path: str, request: PublishRequest) -> PublishResponse:
        body, messages = encode_publish_request(request), len(request.payloads)
        # Under their numbers they are there once, however often they come: those without any are sent to nobody else.
        numbered = request.sequence_ids is not None and (request.producer is not None or request.write_pointer is not None)
        waits = _AGAIN if numbered else None
        try:
            answer = await self._transport.ask("POST", path, body, ONCELOG_AVRO, timeout=waits, most=_receipts_bytes(messages))
        except RequestTooLarge as error:
            advise(error, body, messages)
            raise
        response = decoded(decode_published, answer)
        if messages:  # else a group is published, and nobody counts it here
            check_receipts(response.receipts, messages)
        return response


def advise(error: RequestTooLarge, body: bytes, messages: int) -> None:
    """Have the error of a request of one message not say that fewer should be sent at once."""
    if messages == 1 and error.limit is not None and len(body) > error.limit:
        error.detail = (
            f"one message alone makes a request of {len(body)} bytes, and the service takes {error.limit}: "
            "cut it up, or have the service take more (max_request_bytes)"
        )
        error.args = (error.detail,)


def _receipts_bytes(messages: int) -> int:
    """The most bytes that the receipts of so many messages take, and then some."""
    return (1 << 16) + 128 * messages
