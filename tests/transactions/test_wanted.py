"""Each instance is handed the ends of transactions on the topics that it serves, and nothing holds up anything else."""

from __future__ import annotations

from oncelog import Client
from oncelog.errors import DiskFull, NotServedHere
from oncelog.wire.requests import PublishRequest
from oncelog.wire.transaction import TransactionType
from oncelog_service.clock import SystemClock
from oncelog_service.service import Service
from oncelog_service.settlement import SettlementTask
from oncelog_service.storage.memory import Disk
from oncelog_service.transactions.wanted import EVERYTHING, Wanted
from tests.transactions.house import opened
from tests.world.clock import ManualClock
from tests.world.service import running_service

ALIVE = ("a", "b", "c")
PARTICIPANTS = [f"store:default/t{number}/1" for number in range(200)]


def test_every_participant_is_wanted_by_exactly_one_instance() -> None:
    wanted = [Wanted(each, ALIVE) for each in ALIVE]
    shares = [sum(each.wants(participant) for participant in PARTICIPANTS) for each in wanted]
    assert sum(shares) == len(PARTICIPANTS)
    assert all(share > 30 for share in shares), shares
    assert all(sum(each.wants(participant) for each in wanted) == 1 for participant in PARTICIPANTS)


def test_what_an_instance_serves_beside_its_share_is_wanted_and_what_it_could_not_settle_is_not() -> None:
    theirs = next(each for each in PARTICIPANTS if not Wanted("a", ALIVE).wants(each))
    mine = next(each for each in PARTICIPANTS if Wanted("a", ALIVE).wants(each))
    assert Wanted("a", ALIVE, also=frozenset([theirs])).wants(theirs)
    assert not Wanted("a", ALIVE, without=frozenset([mine])).wants(mine)
    assert all(map(EVERYTHING.wants, [*PARTICIPANTS, "anything"]))


async def test_each_instance_is_handed_its_own_share_however_much_the_others_have_to_do() -> None:
    async with opened(Disk()) as house:
        manager = house.manager
        for _ in range(15):
            pointer = (await manager.start(TransactionType.SHORT)).write_pointer
            for participant in PARTICIPANTS[:100]:
                await manager.enlist(pointer, participant)
            await manager.commit(pointer)
        shares = [await manager.unacknowledged(0, "store", Wanted(each, ALIVE)) for each in ALIVE]
        assert sum(map(len, shares)) == 1_500, "1,000 are handed out at once; a third of these is less"
        for each, share in zip(ALIVE, shares, strict=True):
            assert all(Wanted(each, ALIVE).wants(settlement.participant) for settlement in share)
        assert len(await manager.unacknowledged(0, "store")) == 1_000
        assert await manager.unacknowledged(0, "another") == []


def test_a_topic_that_cannot_be_told_now_holds_up_no_other_one() -> None:
    with running_service() as service, Client(service.url) as client:

        async def stop_the_task(inside: Service) -> None:
            for task in inside._running:
                task.cancel()

        for name in ("ours", "theirs"):
            client.create_topic(name)
        service.on_loop(stop_the_task)
        pointers = [client.start_transaction().write_pointer for _ in range(5)]
        for pointer in pointers:
            for name in ("ours", "theirs"):
                client.publish(name, PublishRequest([b"x"], write_pointer=pointer))
            client.commit_transaction(pointer)

        async def settle(inside: Service) -> tuple[list[str], list[int], int]:
            told: list[str] = []
            settle = inside.opening.topics.participants.settle

            async def elsewhere(participant: str, pointer: int, committed: bool) -> None:
                told.append(participant.partition("/")[2].partition("/")[0])
                if told[-1] == "theirs":
                    raise NotServedHere(url="http://another")
                await settle(participant, pointer, committed)

            inside.opening.topics.participants.settle = elsewhere  # type: ignore[method-assign]
            task = SettlementTask(inside.opening.topics.participants, inside.opening.transactions, ManualClock())
            rounds = [await task.once() for _ in range(3)]
            return told, rounds, len(await inside.opening.transactions.unacknowledged(0))

        told, rounds, left = service.on_loop(settle)
        assert (told.count("ours"), told.count("theirs")) == (5, 1), "it is not tried again and again"
        assert (sum(rounds), left) == (5, 5)


def test_what_has_committed_does_not_wait_for_room_to_roll_back_what_was_aborted_before() -> None:
    with running_service() as service, Client(service.url) as client:

        async def stop_the_task(inside: Service) -> None:
            for task in inside._running:
                task.cancel()

        client.create_topic("t")
        service.on_loop(stop_the_task)
        aborted, committed = (client.start_transaction().write_pointer for _ in range(2))
        for pointer in (committed, aborted):
            client.publish("t", PublishRequest([b"x"], write_pointer=pointer))
        client.abort_transaction(aborted)
        client.commit_transaction(committed)

        async def settle(inside: Service) -> tuple[list[int], int]:
            log = await inside.opening.topics.logs.open("default", "t")

            async def no_room(size: int) -> None:
                raise DiskFull("there is none")

            log._writer.room.rewrite = no_room  # type: ignore[method-assign]
            done = await SettlementTask(inside.opening.topics.participants, inside.opening.transactions, SystemClock()).once()
            return [*log.dedup.fold.unsettled], done

        assert service.on_loop(settle) == ([aborted], 1)
