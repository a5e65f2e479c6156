"""Who serves what, where several processes share a store."""

from __future__ import annotations

from oncelog.errors import NotServedHere
from oncelog.wire.models import Cluster, ClusterInstance, ClusterLease, InstanceId, NamespaceName, Request, TopicName
from oncelog_service.cluster.leases import topic_of, topic_resource
from oncelog_service.rest.bodies import query_limit
from oncelog_service.rest.routes import Call
from oncelog_service.storage.keys import topic_key
from oncelog_service.topics.directory import check_topic_name


class HandOver(Request):
    """A topic, and the instance that is to serve it."""

    namespace: NamespaceName
    topic: TopicName
    instance: InstanceId


async def show(call: Call) -> Cluster:
    """The instances that are alive, and who holds which lease: at most `limit`, behind the topic, or the resource, `after`."""
    membership = call.service.opening.membership
    instances, held = await membership.overview(_resource(call.query.get("after", "")), query_limit(call))
    urls = {each.id: each.url for each in instances}
    leases = []
    for resource, lease in held.items():
        namespace, topic = topic_of(resource) or (None, None)
        leases.append(
            ClusterLease(
                resource=resource.decode() if topic is None else "topic",
                namespace=namespace,
                topic=topic,
                epoch=lease.epoch,
                instance=lease.instance,
                url=urls.get(lease.instance),
            )
        )
    return Cluster(
        instance=membership.id,
        instances=[ClusterInstance(id=each.id, url=each.url, expires_in_ms=each.expires_in_ms) for each in instances],
        leases=leases,
    )


def _resource(name: str) -> bytes:
    """What has this name in a list of leases. Raises InvalidRequest."""
    namespace, slash, topic = name.partition("/")
    if not slash:
        return name.encode()
    check_topic_name(namespace, topic)
    return topic_resource(topic_key(namespace, topic))


async def hand_over(call: Call, asked: HandOver) -> None:
    """Have another instance serve a topic from now on; what is in flight is finished first.

    The instance that serves it answers. To the one that serves it already, nothing is done.
    """
    call.subject = {"topic": f"{asked.namespace}/{asked.topic}", "instance": asked.instance}
    membership = call.service.opening.membership  # who has the store for itself hands nothing over
    holder = await membership.holder(topic_resource(topic_key(asked.namespace, asked.topic)))
    if holder is not None and holder.id == asked.instance:
        return
    if holder is not None and holder.id != membership.id:
        raise NotServedHere(url=holder.url)
    await call.service.opening.topics.logs.hand_over(asked.namespace, asked.topic, asked.instance)
