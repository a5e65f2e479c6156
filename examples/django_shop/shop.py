"""A shop on Django: an order and the message that tells of it commit together.

    pip install django
    export DJANGO_SETTINGS_MODULE=examples.django_shop.settings
    oncelog serve &
    oncelog topic create orders
    python -m examples.django_shop.shop                                  # makes the tables
    oncelog outbox relay sqlite:///shop.db --name shop &
    django-admin runserver &
    curl -d 'customer=Ada' -d 'goods=figs' localhost:8000/order
    oncelog read orders

The row of the outbox is written by Django itself, as a model over the outbox's table: so it is in whatever transaction the view
is in, ``transaction.atomic`` or ATOMIC_REQUESTS, and goes when that is rolled back. ``post_save`` is the wrong place to publish:
it runs before the commit. ``transaction.on_commit`` is, too: a process that dies between the two has told nobody.

The relay is a process of its own, or a thread (``OutboxRelay``) of each worker, of which one works.
"""

from __future__ import annotations

import django
from django.db import connection, transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST


@csrf_exempt
@require_POST
def order(request: HttpRequest) -> HttpResponse:
    """Takes an order."""
    from examples.django_shop.models import Order, tell  # models are there once Django is set up

    with transaction.atomic():
        made = Order.objects.create(customer=request.POST["customer"], goods=request.POST["goods"])
        tell("orders", {"order": made.pk, "goods": made.goods}, key=made.customer)
        if made.goods == "nothing":  # which a real shop would look at first
            transaction.set_rollback(True)
            return JsonResponse({"error": "nobody can buy nothing"}, status=422)
    return JsonResponse({"order": made.pk}, status=201)


urlpatterns = [path("order", order)]


def make_tables() -> None:
    """Makes the tables of the shop and of its outbox, where they are missing."""
    from examples.django_shop.models import Order, outbox
    from sqlalchemy import create_engine

    if Order._meta.db_table not in connection.introspection.table_names():
        with connection.schema_editor() as schema:
            schema.create_model(Order)
    outbox.create_tables(create_engine(f"sqlite:///{connection.settings_dict['NAME']}"))


if __name__ == "__main__":
    django.setup()
    make_tables()
