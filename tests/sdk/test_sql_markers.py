"""A marker is of one resource, one store and one write pointer, and says nothing of any other."""

from __future__ import annotations

from itertools import product
from pathlib import Path

from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from oncelog.sql.markers import Decision, Key, Markers


def test_what_differs_in_one_of_the_three_is_another_transaction(tmp_path: Path) -> None:
    """Two services may hand out one pointer, and two resources be in one transaction."""
    engine = create_engine(f"sqlite:///{tmp_path}/db", poolclass=NullPool)
    resources = {name: Markers("markers", name, 2.0) for name in ("shop", "bank")}
    resources["shop"].table.create(engine)
    written: dict[tuple[str, Key], Decision] = {}
    for number, (name, store, pointer) in enumerate(product(resources, ("a", "b"), (5, 6))):
        key, state = Key(store, pointer), ("committed", "aborted")[number.bit_count() % 2]
        with engine.begin() as connection:
            resources[name].write(connection, key, state)
        written[name, key] = state

    def told() -> dict[tuple[str, Key], Decision | None]:
        return {(name, key): resources[name].decided(engine, key) for name, key in written}

    assert told() == written
    gone = "shop", Key("a", 5)
    with engine.begin() as connection:
        resources["shop"].delete(connection, [gone[1]])
        left = {(name, each.key) for name in resources for store in "ab" for each in resources[name].oldest(connection, store, 9)}
    assert left == written.keys() - {gone}
    assert told() == {**written, gone: "aborted"}, "whoever recovers has decided now that it will not commit"
