"""The table of all addresses."""

from __future__ import annotations

from oncelog import errors
from oncelog.wire.codec import MEDIA_TYPES
from oncelog.wire.media import JSON, NDJSON
from oncelog.wire.models import (
    NamespacePolicies,
    OpenedProducer,
    OpenProducer,
    Producer,
    Topic,
    TopicStats,
    Verification,
    Why,
)
from oncelog_service.rest import messages, producers, status, topics, verification
from oncelog_service.rest.routes import PRODUCER, TOPIC, Route

_PROPERTIES = {JSON: {"type": "object", "additionalProperties": {"type": "string"}}}
_NAMES = {JSON: {"type": "array", "items": {"type": "string"}}}
_NOTHING = {JSON: {"type": "null"}}
_NAMESPACE = "/v1/namespaces/{namespace}"


def _avro(name: str) -> dict[str, str]:
    return dict.fromkeys(MEDIA_TYPES, name)


_BODY = (errors.InvalidRequest, errors.RequestTooLarge, errors.UnsupportedMediaType)
_STORE = (errors.StorageUnavailable, errors.StorageFailed)
_ON_TOPIC = (errors.TopicNotFound, errors.TopicDamaged)

ROUTES = (
    Route("GET", "/v1/namespaces", topics.namespaces, "List namespaces", response=_NAMES),
    Route(
        "GET", _NAMESPACE + "/policies", topics.get_policies, "Show a namespace's policies",
        response={JSON: NamespacePolicies}, errors=(errors.InvalidRequest,),
    ),
    Route(
        "PUT", _NAMESPACE + "/policies", topics.set_policies, "Replace a namespace's policies",
        request={JSON: NamespacePolicies}, response=_NOTHING, errors=_BODY + _STORE,
    ),
    Route(
        "GET", _NAMESPACE + "/topics", topics.list_, "List topics",
        response=_NAMES, errors=(errors.InvalidRequest,),
    ),
    Route(
        "PUT", TOPIC, topics.create, "Create a topic",
        request=_PROPERTIES, response=_NOTHING, errors=(*_BODY, errors.TopicExists, *_STORE),
    ),
    Route(
        "GET", TOPIC, topics.get, "Show a topic",
        response={JSON: Topic}, errors=(errors.InvalidRequest, errors.TopicNotFound),
    ),
    Route(
        "DELETE", TOPIC, topics.delete, "Delete a topic",
        response=_NOTHING, errors=(errors.InvalidRequest, errors.TopicNotFound, *_STORE),
    ),
    Route(
        "PUT", TOPIC + "/properties", topics.update, "Replace a topic's properties",
        request=_PROPERTIES, response=_NOTHING, errors=(*_BODY, errors.TopicNotFound, *_STORE),
    ),
    Route(
        "GET", TOPIC + "/stats", topics.stats, "Show where a topic's log begins and ends",
        response={JSON: TopicStats}, errors=(errors.InvalidRequest, *_ON_TOPIC),
    ),
    Route(
        "POST", TOPIC + "/publish", messages.publish, "Publish messages",
        request=_avro("PublishRequest"), response=_avro("PublishResponse"),
        errors=(*_BODY, errors.ProducerFenced, errors.SequenceGap, errors.SequenceReused, *_ON_TOPIC, *_STORE),
    ),
    Route(
        "POST", TOPIC + "/poll", messages.poll, "Poll messages",
        request=_avro("ConsumeRequest"), response=_avro("ConsumeResponse"),
        errors=(*_BODY, errors.InvalidMessageId, errors.StaleMessageId, errors.OffsetOutOfRange, *_ON_TOPIC, *_STORE),
    ),
    Route(
        "POST", TOPIC + "/verify", verification.verify, "Refold a log and compare it with the live maps",
        response={NDJSON: Verification}, errors=(errors.InvalidRequest, *_ON_TOPIC),
    ),
    Route(
        "POST", TOPIC + "/producers", producers.open_, "Open a producer",
        request={JSON: OpenProducer}, response={JSON: OpenedProducer}, errors=_BODY + _ON_TOPIC + _STORE,
    ),
    Route(
        "GET", TOPIC + "/producers", producers.list_, "List producers",
        response={JSON: {"type": "array", "items": Producer}}, errors=(errors.InvalidRequest, *_ON_TOPIC),
        query={"after": "names behind this one", "limit": "at most so many, 1 to 10000"},
    ),
    Route(
        "GET", PRODUCER, producers.get, "Show a producer",
        response={JSON: Producer}, errors=(errors.ProducerNotFound, *_ON_TOPIC),
    ),
    Route(
        "DELETE", PRODUCER, producers.delete, "Forget a producer",
        response=_NOTHING, errors=(errors.ProducerNotFound, *_ON_TOPIC, *_STORE),
    ),
    Route(
        "GET", PRODUCER + "/why", producers.why, "Say why a sequence id was or would be dropped",
        response={JSON: Why}, errors=(errors.InvalidRequest, *_ON_TOPIC), query={"sequenceId": "0 to 2^63-1"},
    ),
    Route("GET", "/healthz", status.healthz, "Is the store open and read back", response={JSON: {"type": "object"}},
          errors=(errors.StorageUnavailable,)),
    Route("GET", "/metrics", status.metrics, "Prometheus metrics", response={"text/plain": {"type": "string"}}),
)  # fmt: skip
"""Everything the service answers, but for /openapi.json and /docs, which are made from this."""
