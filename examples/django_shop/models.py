"""The shop's tables: its orders, and the outbox."""

from __future__ import annotations

from typing import Any

from django.db import models

from oncelog import Outbox

outbox = Outbox("shop", codec="json")


class Order(models.Model):
    """What somebody has bought."""

    customer = models.CharField(max_length=100)
    goods = models.CharField(max_length=100)


class Waiting(models.Model):
    """A row of the outbox: a message that a relay publishes once what it was written with has committed."""

    outbox = models.CharField(max_length=255)
    token = models.IntegerField()
    namespace = models.CharField(max_length=255)
    topic = models.CharField(max_length=255)
    key = models.BinaryField(null=True)
    payload = models.BinaryField()
    properties = models.TextField(null=True)
    ttl = models.BigIntegerField(null=True)
    size = models.BigIntegerField()
    added_ms = models.BigIntegerField()

    class Meta:
        """The table is the outbox's own, which makes it."""

        managed = False
        db_table = outbox.table.name


def tell(topic: str, value: Any, key: str | None = None) -> None:
    """Has a message published if, and only if, the transaction commits that is under way."""
    Waiting.objects.create(**outbox.row(topic, value, key=key))
