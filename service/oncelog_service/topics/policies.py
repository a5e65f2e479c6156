"""What holds for a topic's messages: as the topic says, else its namespace, else the service.

Policies of namespaces are read when the store is opened, and held in memory. Another process over the same store may set them:
they are read again now and then.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from contextlib import closing

from oncelog.wire.models import NamespacePolicies
from oncelog.wire.names import check_namespace
from oncelog_service.bounds.size import MaxBytes
from oncelog_service.cluster.leases import SETUP, Leases, held_briefly
from oncelog_service.group_commit import Writer
from oncelog_service.log.limits import Limits
from oncelog_service.properties import Rules, checks_expectations, deduplicates, max_bytes, rates
from oncelog_service.reading import read
from oncelog_service.storage.port import Batch, RowDamaged, Store, StoreDamaged, Table
from oncelog_service.storage.records import NamespaceRow, TopicRow, decode_record, encode_record

_NONE = NamespacePolicies()


class Policies:
    """Belongs to the event loop that owns the writer."""

    def __init__(self, store: Store, writer: Writer, leases: Leases, limits: Limits) -> None:
        """Reads the store. ``limits``: they have what the service says."""
        self._store = store
        self._writer = writer
        self._leases = leases
        self._limits = limits
        self._of = _read(store)
        self.on_change: Callable[[], None] = lambda: None
        """Called when other policies hold than before."""

    @property
    def namespaces(self) -> Set[str]:
        """Those that have policies, or had some that were taken back."""
        return self._of.keys()

    def of(self, namespace: str) -> NamespacePolicies:
        """The policies of a namespace."""
        return self._of.get(namespace, _NONE)

    async def set(self, namespace: str, policies: NamespacePolicies) -> None:
        """Replace the policies; they hold for the topics open here at once, for those elsewhere once they are read again.

        Raises InvalidRequest, StorageUnavailable.
        """
        check_namespace(namespace)
        batch = Batch()
        kept = {"deduplication": policies.deduplication, **policies.model_dump(exclude_none=True)}
        batch.put(Table.NAMESPACE, namespace.encode(), encode_record(NamespaceRow(kept)))
        # Under a lease, so that one who was stopped before it was written does not undo what was set elsewhere meanwhile.
        async with held_briefly(self._leases, SETUP) as lease:
            await self._writer.under(lease).submit(batch, lambda: self._replace({**self._of, namespace: policies}))

    async def reread(self) -> None:
        """Read them as other processes have set them. Raises StorageUnavailable, TopicDamaged."""
        before = self._of
        found = await read(_read, self._store)
        if self._of is before and found != before:  # else some were set here meanwhile; the next time is soon
            self._replace(found)

    def _replace(self, policies: dict[str, NamespacePolicies]) -> None:
        self._of = policies
        self.on_change()

    def rules(self, namespace: str, row: TopicRow) -> Rules:
        """What holds at this moment for the messages of a topic with this row."""
        return Rules(self.deduplicates(namespace, row), rates(row.properties, self.of(namespace)), self.max_bytes(namespace, row))

    def deduplicates(self, namespace: str, row: TopicRow) -> bool:
        """Whether a topic with this row deduplicates."""
        return deduplicates(row.properties, self.of(namespace).deduplication, self._limits.deduplication)

    def max_bytes(self, namespace: str, row: TopicRow) -> MaxBytes | None:
        """What the messages of a topic with this row may take; None: there is no limit."""
        return max_bytes(row.properties, self.of(namespace))

    def checks_expectations(self, row: TopicRow) -> bool:
        """Whether a topic with this row takes conditional publishes; namespaces have no say."""
        return checks_expectations(row.properties, self._limits.check_expected_offsets)


def _read(store: Store) -> dict[str, NamespacePolicies]:
    try:
        with closing(store.scan(Table.NAMESPACE, b"", b"\xff")) as rows:
            found = {key.decode(): decode_record(NamespaceRow, data).policies for key, data in rows}
            return {namespace: NamespacePolicies.model_validate(policies) for namespace, policies in found.items()}
    except (RowDamaged, ValueError) as damage:
        raise StoreDamaged(str(damage)) from damage
