"""The lease table in the database that the rows lie in: each call is one transaction. Blocks; not for the event loop.

See :class:`~oncelog_service.storage.port.LeaseTable`. Who changes a lease, and who writes under it, locks its row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from sqlalchemy import BigInteger, Connection, Engine, cast, delete, extract, func, insert, or_, select, update
from sqlalchemy.dialects.postgresql import insert as insert_or_nothing
from sqlalchemy.exc import SQLAlchemyError

from oncelog_service.storage.incarnation import behind_row
from oncelog_service.storage.port import Dead, Fence, Instance, LeaseHolder, StoreBehind, StoreError, Table
from oncelog_service.storage.seals import seal
from oncelog_service.storage.sql.tables import INSTANCE, LEASE, ROW
from oncelog_service.storage.sql.written import Written

_NOW_MS = cast(extract("epoch", func.clock_timestamp()) * 1000, BigInteger)

_INSTANCES = select(INSTANCE.c.id, INSTANCE.c.url, INSTANCE.c.expires_ms - _NOW_MS)
_ALIVE = _INSTANCES.where(INSTANCE.c.expires_ms > _NOW_MS)

_IDLE = "SET LOCAL idle_in_transaction_session_timeout = '2s'"
"""A process that is stopped, or a machine that vanishes, while it has locked a row would hold the others off for good."""

_FLOOR = b"floor"
"""Of what was never taken the first epoch is above that of this row, which nobody takes. It is there once all leases were
raised."""

_DEAD = "this instance was not heard of in time, or another one has started at its address; others may serve its topics by now"
_LONG_DEAD_MS = 86_400_000
"""Rows of instances that ended so long ago, and whose leases no other one has wanted, are deleted."""


class SqlLeaseTable:
    """Keeps a :class:`~oncelog_service.storage.port.LeaseTable` in the database of the store."""

    def __init__(self, engine: Engine, written: Written) -> None:
        """``written``: is told at which URL an instance of this process answers."""
        self._engine = engine
        self._written = written

    def join(self, id: str, url: str, ttl_ms: int) -> None:  # noqa: A002
        with self._transaction() as connection:
            long_dead = INSTANCE.c.expires_ms < _NOW_MS - _LONG_DEAD_MS
            connection.execute(delete(INSTANCE).where(or_(INSTANCE.c.url == url, long_dead)))
            connection.execute(insert(INSTANCE).values(id=id, url=url, expires_ms=_NOW_MS + ttl_ms))
        if Instance(id, url, ttl_ms).is_service:
            self._written.named(url)

    def renew(self, id: str, ttl_ms: int) -> Sequence[Instance]:  # noqa: A002
        with self._transaction() as connection:
            renewed = connection.execute(
                update(INSTANCE).where(INSTANCE.c.id == id, INSTANCE.c.expires_ms > _NOW_MS).values(expires_ms=_NOW_MS + ttl_ms)
            )
            if not renewed.rowcount:
                raise Dead(_DEAD)
            return _alive(connection)

    def leave(self, id: str) -> None:  # noqa: A002
        with self._transaction() as connection:
            connection.execute(update(LEASE).where(LEASE.c.instance == id).values(instance=None))
            connection.execute(delete(INSTANCE).where(INSTANCE.c.id == id))

    def take(self, id: str, resource: bytes) -> Fence | Instance:  # noqa: A002
        with self._transaction() as connection:
            row = connection.execute(select(LEASE.c.instance).where(LEASE.c.resource == resource).with_for_update()).one_or_none()
            if row is None:
                floor = connection.execute(select(LEASE.c.epoch).where(LEASE.c.resource == _FLOOR)).scalar() or 0
                connection.execute(
                    insert_or_nothing(LEASE).values(resource=resource, epoch=floor, instance=None).on_conflict_do_nothing()
                )
                row = connection.execute(select(LEASE.c.instance).where(LEASE.c.resource == resource).with_for_update()).one()
            # The lease's row is locked since it was read: no other process takes it, and no fenced write passes, until this ends.
            if row.instance not in (None, id):
                holder = _instance(connection, row.instance)
                if holder is not None:
                    if holder.expires_in_ms > 0:
                        return holder
                    connection.execute(delete(INSTANCE).where(INSTANCE.c.id == holder.id))
            me = _instance(connection, id)
            if me is None or me.expires_in_ms <= 0:
                raise Dead(_DEAD)
            epoch = connection.execute(
                update(LEASE)
                .where(LEASE.c.resource == resource)
                .values(epoch=LEASE.c.epoch + 1, instance=id)
                .returning(LEASE.c.epoch)
            ).scalar_one()
            return Fence(resource, epoch)

    def give_up(self, id: str, fence: Fence, to: str | None = None) -> None:  # noqa: A002
        with self._transaction() as connection:
            connection.execute(
                update(LEASE)
                .where(LEASE.c.resource == fence.resource, LEASE.c.epoch == fence.epoch, LEASE.c.instance == id)
                .values(epoch=LEASE.c.epoch + 1, instance=to)
            )

    def holder(self, resource: bytes) -> Instance | None:
        with self._transaction() as connection:
            held = _ALIVE.join(LEASE, LEASE.c.instance == INSTANCE.c.id).where(LEASE.c.resource == resource)
            row = connection.execute(held).one_or_none()
            return None if row is None else Instance(*row)

    def instances(self) -> Sequence[Instance]:
        with self._transaction() as connection:
            return _alive(connection)

    def held(self, after: bytes = b"", limit: int | None = None) -> Mapping[bytes, LeaseHolder]:
        columns = LEASE.c.resource, LEASE.c.epoch, LEASE.c.instance
        behind = select(*columns).where(LEASE.c.instance.is_not(None), LEASE.c.resource > after)
        with self._transaction() as connection:
            rows = connection.execute(behind.order_by(LEASE.c.resource).limit(limit))
            return {bytes(row.resource): LeaseHolder(bytes(row.resource), row.epoch, row.instance) for row in rows}

    def raise_all(self, epoch: int) -> None:
        with self._transaction() as connection:
            connection.execute(insert_or_nothing(LEASE).values(resource=_FLOOR, epoch=0, instance=None).on_conflict_do_nothing())
            connection.execute(update(LEASE).values(epoch=func.greatest(LEASE.c.epoch, epoch) + 1))

    def end_all_if_behind(self) -> None:
        """Ends every instance and every lease, and says why in a row, where what was written is still not there.

        Raises StoreBehind: that was so; StoreError.
        """
        with self._transaction() as connection:
            # Who renews the store writes under a lease: so that is before this look at it, or refused.
            connection.execute(select(LEASE.c.resource).order_by(LEASE.c.resource).with_for_update()).all()
            try:
                self._written.check(lambda key: connection.execute(select(ROW.c.value).where(ROW.c.key == key)).scalar())
                return
            except StoreBehind as found:
                behind = found
            key, value = behind_row(self._written.name, str(behind))
            row = {"key": Table.STORE_ID.value + key, "value": seal(Table.STORE_ID, key, value)}
            connection.execute(insert_or_nothing(ROW).values(row).on_conflict_do_nothing())
            connection.execute(update(LEASE).values(epoch=LEASE.c.epoch + 1, instance=None))
            connection.execute(delete(INSTANCE))
        raise behind

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        try:
            with self._engine.begin() as connection:
                connection.exec_driver_sql(_IDLE)
                yield connection
        except SQLAlchemyError as error:
            raise StoreError(f"the leases cannot be read or written: {type(error).__name__}") from error


def _instance(connection: Connection, id: str) -> Instance | None:  # noqa: A002
    row = connection.execute(_INSTANCES.where(INSTANCE.c.id == id).with_for_update()).one_or_none()
    return None if row is None else Instance(*row)


def _alive(connection: Connection) -> Sequence[Instance]:
    return [Instance(*row) for row in connection.execute(_ALIVE)]
