"""Each alarm is raised from its border on, and not before it; it names the thing and the way out."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

import pytest
import typer

from oncelog.wire.overview import SEVERITIES, Alarm
from oncelog_service.cli import app
from oncelog_service.cli.frame.lazy import Later
from oncelog_service.watch.facts import Expiring, Facts, Held, Lagging, Member, Refused, Replay, Thresholds
from oncelog_service.watch.rules import LATELY_MS, LONG_HELD_MS, MOST_OF_A_KIND, REPLAY_MESSAGES, RULES, alarms, size, span
from tests.docs.pages import ROOT

NOW = 1_790_000_000_000
THRESHOLDS = Thresholds(lag_messages=1_000, lag_ms=300_000, held_ms=60_000)
DAY = 86_400_000


def held(age: int, **more: Any) -> Mapping[str, Any]:
    return {"held": (Held("shop", "orders", 77, NOW - age, 12, **more),)}


def lagging(lag: int, age: int | None) -> Mapping[str, Any]:
    return {"lagging": (Lagging("shop", "orders", "billing", lag, None if age is None else NOW - age),)}


def refused(code: str, ago: int, **more: Any) -> Mapping[str, Any]:
    return {"refused": (Refused(code, NOW - ago - 1_000, NOW - ago, 3, "shop", "orders", **more),)}


def token(left: int, life: int) -> Mapping[str, Any]:
    return {"tokens": (Expiring("4f", "loader", NOW + left - life, NOW + left),)}


def member(**more: Any) -> Mapping[str, Any]:
    return {"members": (Member("m2", "http://10.0.0.2:7070", **{"alive": True, **more}),)}


CASES: list[tuple[str, str, Mapping[str, Any], Mapping[str, Any] | None, list[str]]] = [
    ("store_closed", "critical", {"open": False, "reason": "no room left"}, {}, ["no room left"]),
    ("store_stalled", "critical", {"stalled_ms": 12_300}, {"stalled_ms": 0}, ["12 s", "restart does not help", "dmesg"]),
    ("store_damaged", "critical", {"damaged": True, "failures": 4}, {"failures": 4}, ["4 times", "oncelog salvage"]),
    (
        "disk_full", "critical", {"disk_state": "full", "disk_free": 100 * 2**20, "disk_floor": 256 * 2**20, "disk_refused": 9},
        None, ["100 MiB", "256 MiB", "9 requests", "oncelog topic delete"],
    ),
    (
        "disk_low", "warning", {"disk_state": "low", "disk_free": 300 * 2**20, "disk_floor": 256 * 2**20},
        {"disk_state": "ok", "disk_free": 600 * 2**20, "disk_floor": 256 * 2**20}, ["300 MiB", "256 MiB", "--ttl"],
    ),
    (
        "topic_held", "warning", held(60_000, state="in_progress", owner="loader", expires_ms=NOW + 5_000, subscriptions=2),
        held(59_999, state="in_progress"),
        ["shop/orders", "77", "loader", "60 s", "12 messages", "2 subscriptions", "5 s", "oncelog tx abort 77 --unless-prepared"],
    ),
    ("topic_held", "critical", held(LONG_HELD_MS, state="in_progress", expires_ms=NOW), None, ["times out in"]),
    ("topic_held", "warning", held(60_000, state="in_progress"), None, ["oncelog tx abort 77 --unless-prepared"]),
    (
        "topic_held", "warning", held(LONG_HELD_MS - 1, state=None, producers=("pos",)), None,
        [
            *("producer pos", "ask it first", "`oncelog topic settle --committed --namespace shop orders 77`"),
            *("`oncelog topic settle --rolled-back --namespace shop orders 77`", "oncelog topic show --namespace shop orders"),
        ],
    ),
    (
        "topic_held", "warning", {"held": (Held("shop", "orders", NOW * 10**6 + 500_000, NOW - 60_000, 12),)}, None,
        [
            *("put back to an earlier time", "its store can still be found", "never counts by its age"),
            *(f"--committed --namespace shop orders {NOW}500000", f"--rolled-back --namespace shop orders {NOW}500000"),
        ],
    ),
    ("topic_held", "warning", held(60_000, state="in_progress", resource="db1"), None, ["db1 decides", "SqlParticipant.recover"]),
    ("topic_held", "warning", held(60_000, state="committed"), None, ["committed", "oncelog tx show 77"]),
    (
        "subscription_lags", "warning", lagging(1_000, 300_000), lagging(999, 300_000),
        ["billing", "shop/orders", "1,000 messages", "5 min", "subscription seek --to latest --namespace shop orders billing"],
    ),
    ("subscription_lags", "warning", lagging(1_000, 300_000), lagging(1_000, 299_999), []),
    ("subscription_lags", "warning", lagging(1_000, 300_000), lagging(10_000, None), []),
    (
        "producer_fenced", "warning", refused("producer_fenced", LATELY_MS - 1, name="pos", refused="3", newest="4"),
        refused("producer_fenced", LATELY_MS, name="pos"),
        [
            *("producer pos of shop/orders", "3 times", "epoch 3", "newest is 4", "Stop one of the two"),
            "oncelog producer show --namespace shop orders pos",
        ],
    ),
    (
        "consumer_fenced", "warning", refused("consumer_fenced", 0, name="billing", refused="1", newest="2"),
        refused("consumer_fenced", LATELY_MS, name="billing"), ["subscription billing", "show --namespace shop orders billing"],
    ),
    (
        "sequence_gap", "warning", refused("sequence_gap", 0, name="pos", refused="9", newest="7"),
        refused("sequence_gap", LATELY_MS, name="pos"), ["sequence id 9", "7 is next"],
    ),
    (
        "quota_exceeded", "warning", refused("quota_exceeded", 0, name="messages", detail="5 messages a second", who="loader"),
        refused("quota_exceeded", LATELY_MS), ["loader", "5 messages a second"],
    ),
    (
        "quota_exceeded", "warning", {**held(0), **refused("quota_exceeded", 0, name="max.bytes")}, None,
        ["nothing from its first message on is trimmed", "oncelog tx list --state held"],
    ),
    ("overloaded", "warning", {"shed": {"requests": 3, "bodies": 1}}, {"shed": {"requests": 0}}, ["requests 3 times"]),
    (
        "topic_damaged", "critical", refused("topic_damaged", 10 * DAY, detail="offset 7 is missing"), {},
        ["shop/orders", "offset 7 is missing", "oncelog verify --namespace shop orders"],
    ),
    (
        "snapshot_old", "warning", {"replays": (Replay("shop", "orders", REPLAY_MESSAGES),)},
        {"replays": (Replay("shop", "orders", REPLAY_MESSAGES - 1),)}, ["200,000 messages"],
    ),
    (
        "transactions_unreachable", "critical", {"transactions_reachable": False, "transactions_url": "http://tx:7071"},
        {"transactions_url": "http://tx:7071"}, ["http://tx:7071"],
    ),
    ("task_failing", "warning", {"failing": ("retention",)}, {}, ["retention"]),
    ("clock_back", "warning", {"clock_behind_ms": 1_000}, {"clock_behind_ms": 999}, ["set back by 1 s"]),
    ("clock_back", "warning", {"ahead": ("shop", "orders", 1_000)}, {"ahead": ("shop", "orders", 999)}, ["shop/orders"]),
    ("instance_missing", "warning", member(alive=False, leases=3), member(leases=3), ["10.0.0.2:7070 is gone", "3 leases"]),
    ("instance_silent", "warning", member(answers=False), member(), ["http://10.0.0.2:7070"]),
    ("clocks_apart", "warning", member(apart_ms=1_000), member(apart_ms=999), ["1 s ahead of"]),
    ("clocks_apart", "warning", member(apart_ms=-1_000), member(apart_ms=-999), ["1 s behind"]),
    (
        "certificate_ends", "warning", {"certificate": "/etc/tls.pem", "certificate_ends_ms": NOW + 14 * DAY},
        {"certificate": "/etc/tls.pem", "certificate_ends_ms": NOW + 14 * DAY + 1}, ["/etc/tls.pem", "14 days"],
    ),
    ("certificate_ends", "warning", {"certificate": "c", "certificate_ends_ms": NOW + 2 * DAY + 1}, None, []),
    ("certificate_ends", "critical", {"certificate": "c", "certificate_ends_ms": NOW + 2 * DAY}, None, []),
    ("certificate_ends", "critical", {"certificate": "c", "certificate_ends_ms": NOW}, None, ["has expired"]),
    (
        "token_ends", "warning", token(7 * DAY, 365 * DAY), token(7 * DAY + 1, 365 * DAY),
        ["4f", "loader", "7 days", "oncelog token revoke 4f"],
    ),
    ("token_ends", "warning", token(DAY, 10 * DAY), token(DAY + 1, 10 * DAY), []),
    ("token_ends", "warning", token(1, 365 * DAY), token(0, 365 * DAY), []),
    ("store_restored", "info", {"restored_ms": NOW - DAY}, {"restored_ms": NOW - DAY - 1}, ["put back"]),
    ("without_tls", "warning", {"is_local": False, "host": "10.0.0.1", "asks_for_credentials": True},
     {"is_local": False, "speaks_tls": True, "asks_for_credentials": True}, ["10.0.0.1"]),
    ("without_tls", "warning", {"is_local": False, "host": "10.0.0.1", "asks_for_credentials": True}, {"is_local": True}, []),
    (
        "open_to_all", "warning", {"behind_a_proxy": True}, {"behind_a_proxy": True, "asks_for_credentials": True},
        ["oncelog token create"],
    ),
    ("open_to_all", "warning", {"behind_a_proxy": True}, {}, []),
    ("few_descriptors", "info", {"descriptors": 4_351, "connections_wanted": 4_096},
     {"descriptors": 4_352, "connections_wanted": 4_096}, ["4351", "4352"]),
]  # fmt: skip
"""Code, severity, facts that raise it, facts just short of it (None: another case says so), what it says."""


def said(alarm: Alarm) -> str:
    return " ".join([alarm.subject, alarm.what, alarm.mend, *alarm.commands])


@pytest.mark.parametrize(("code", "severity", "raised", "short", "words"), CASES)
def test_an_alarm_is_raised_at_its_border_and_not_before(
    code: str, severity: str, raised: Mapping[str, Any], short: Mapping[str, Any] | None, words: list[str]
) -> None:
    [alarm] = alarms(Facts(now_ms=NOW, **raised), THRESHOLDS)
    assert (alarm.code, alarm.severity) == (code, severity)
    assert [word for word in words if word not in said(alarm)] == []
    assert short is None or alarms(Facts(now_ms=NOW, **short), THRESHOLDS) == []


def test_a_service_with_which_all_is_well_has_no_alarms() -> None:
    assert alarms(Facts(now_ms=NOW), THRESHOLDS) == []


def test_every_rule_has_a_case_and_every_alarm_is_documented() -> None:
    fired = {rule for _, _, facts, _, _ in CASES for rule in RULES if list(rule(Facts(now_ms=NOW, **facts), THRESHOLDS))}
    assert fired == set(RULES)
    page = (ROOT / "docs/operating.md").read_text("utf-8").partition("## Alarms")[2].partition("`oncelog doctor` also")[0]
    documented = {code for row in re.findall(r"^\| (`.*?) \|", page, re.MULTILINE) for code in re.findall(r"`(\w+)`", row)}
    assert documented == {code for code, *_ in CASES}


def test_the_page_and_the_section_that_an_alarm_names_are_there() -> None:
    for alarm in [alarm for _, _, facts, *_ in CASES for alarm in alarms(Facts(now_ms=NOW, **facts), THRESHOLDS)]:
        page, _, section = alarm.docs.partition("#")
        headings = re.findall(r"^#+ (.*)$", (ROOT / "docs" / page).read_text("utf-8"), re.MULTILINE)
        anchors = {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings}
        assert not section or section in anchors, alarm.code


def test_the_most_severe_come_first_and_of_a_kind_the_worst_twenty() -> None:
    many = tuple(Lagging("shop", f"t{lag}", "s", lag, NOW - DAY) for lag in range(1_000, 1_100))
    found = alarms(Facts(now_ms=NOW, lagging=many, open=False, restored_ms=NOW), THRESHOLDS)
    assert [SEVERITIES.index(each.severity) for each in found] == [0, *[1] * MOST_OF_A_KIND, 2]
    assert found[1].about["lag"] == 1_099


def test_names_are_quoted_in_commands() -> None:
    odd = Refused("producer_fenced", NOW, NOW, 1, "shop", "orders", name="a:b@c=d")
    [alarm] = alarms(Facts(now_ms=NOW, refused=(odd,)), THRESHOLDS)
    assert shlex.split(alarm.commands[0])[-1] == "a:b@c=d"


HOSTILE = {"topic": "--url", "name": "-h"}
"""Names that a client may choose, and that a command would take for its options."""


def test_the_commands_of_an_alarm_can_be_run_and_none_says_how_a_transaction_ended() -> None:
    """That is a choice, which stands in the text beside the other one: a wrong one cannot be undone."""
    commands = set[str]()
    for _, _, facts, *_ in CASES:
        odd = {name: tuple(map(disguised, found)) if isinstance(found, tuple) else found for name, found in facts.items()}
        for each in (facts, odd):
            for alarm in alarms(Facts(now_ms=NOW, **each), THRESHOLDS):
                commands.update(alarm.commands, re.findall("`(oncelog [^`]+)`", alarm.mend))
                assert not any(words in said for said in alarm.commands for words in ("--committed", "--rolled-back")), alarm
    root = typer.main.get_command(app)
    for command in commands:
        program, *words = shlex.split(command)
        if program == "oncelog":
            parsed = understood(root, [word.replace("SECONDS", "1") for word in words])
            assert "url" not in parsed or parsed["url"] != "-h", command


def disguised(found: Any) -> Any:
    """The same with such names."""
    fields = getattr(found, "_fields", ())
    return found._replace(**{name: said for name, said in HOSTILE.items() if name in fields}) if fields else found


def understood(command: Any, words: list[str]) -> Mapping[str, Any]:
    """What the command line makes of these words. Raises click's UsageError."""
    while hasattr(command, "commands"):
        first, *words = words
        command = command.commands[first]
        command = command.real() if isinstance(command, Later) else command
    parsed: Mapping[str, Any] = command.make_context("oncelog", words).params
    return parsed


@pytest.mark.parametrize(
    ("ms", "text"),
    [(999, "999 ms"), (1_000, "1 s"), (119_000, "119 s"), (120_000, "2 min"), (7_200_000, "2 h"), (172_800_000, "2 days")],
)
def test_spans_are_said_as_people_say_them(ms: int, text: str) -> None:
    assert span(ms) == text


@pytest.mark.parametrize(
    ("amount", "text"), [(0, "0 bytes"), (1_023, "1023 bytes"), (1_536, "1.5 KiB"), (2**34, "16 GiB"), (2**42, "4.0 TiB")]
)
def test_sizes_are_said_as_people_say_them(amount: int, text: str) -> None:
    assert size(amount) == text
