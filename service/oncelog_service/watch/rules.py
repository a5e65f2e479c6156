"""Which alarms follow from the facts: one rule a kind, each with its border. Pure.

An alarm names the thing, its figures, and what ends it: whoever reads one alone knows what to do. A rule that has several things
to name names the worst ones, and at most as many as a page shows.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence

from oncelog.wire.media import DEFAULT_NAMESPACE
from oncelog.wire.overview import SEVERITIES, Alarm
from oncelog.wire.transaction import is_own
from oncelog_service.watch.facts import Facts, Held, Member, Refused, Thresholds

MOST_OF_A_KIND = 20
"""Alarms of one rule: the worst ones. Whatever makes more of them is one thing that went wrong."""

REPLAY_MESSAGES = 200_000
"""A restart replays so many in a second or two: more is worth to be known before it."""
CERTIFICATE_MS = 14 * 86_400_000
"""Before its end: whoever renews it by hand has two weeks, and whatever does it by itself (ACME: 30 days) has failed."""
CERTIFICATE_LAST_MS = 2 * 86_400_000
TOKEN_MS = 7 * 86_400_000
TOKEN_PART = 0.1
"""Of its whole life: a token that was made for an hour is no alarm for that hour."""
RESTORED_MS = 86_400_000
CLOCK_BEHIND_MS = 1_000
CLOCKS_APART_MS = 1_000
"""Ids of messages and write pointers come from clocks; NTP keeps machines within some milliseconds."""
LONG_HELD_MS = 3_600_000
"""A topic that was held back for so long is no slow transaction any more: nothing of it is consumed, snapshot or deleted."""
LATELY_MS = 300_000
"""A refusal is an alarm for so long after the last one."""
_DESCRIPTORS_OF_ITS_OWN = 256

Rule = Callable[[Facts, Thresholds], Iterator[Alarm]]


def alarms(facts: Facts, thresholds: Thresholds) -> list[Alarm]:
    """All that are to be raised, the most severe first, and of one severity in the order of the rules."""
    found = [alarm for rule in RULES for alarm in _first(rule(facts, thresholds))]
    return by_severity(found)


def by_severity(found: Sequence[Alarm]) -> list[Alarm]:
    """The most severe first, else as they are."""
    return sorted(found, key=lambda each: SEVERITIES.index(each.severity))


def about_members(members: tuple[Member, ...]) -> list[Alarm]:
    """What is wrong with the other instances, which are not known yet when one judges itself."""
    return _first(cluster(Facts(now_ms=0, members=members), Thresholds()))


def _first(found: Iterator[Alarm]) -> list[Alarm]:
    return [each for each, _ in zip(found, range(MOST_OF_A_KIND), strict=False)]


# --- the store


def store_closed(facts: Facts, _: Thresholds) -> Iterator[Alarm]:
    """The store is not open: it failed, and is being reopened."""
    if not facts.open:
        yield Alarm(
            code="store_closed",
            severity="critical",
            subject="the store",
            what=f"nothing is answered: {facts.reason}",
            mend="The service opens it again by itself, ever more rarely. Look for the cause: the disk, its cable, its "
            "space; of a database, whether it answers.",
            commands=["oncelog doctor"],
            docs="operating.md#a-full-disk",
        )


def store_stalled(facts: Facts, _: Thresholds) -> Iterator[Alarm]:
    """The store hangs: a write does not end, or a read."""
    if facts.stalled_ms:
        yield Alarm(
            code="store_stalled",
            severity="critical",
            subject="the store",
            about={"stalledMs": facts.stalled_ms},
            since_ms=facts.now_ms - facts.stalled_ms,
            what=f"the store has not answered for {span(facts.stalled_ms)}: what is written waits for it, and what is read",
            mend="The disk hangs, or what it is reached over; or the database does. Look at the log of the kernel, and whether "
            "anything else can write there and read. Once it answers all goes on by itself, and nothing is lost; until then a "
            "restart does not help.",
            commands=["dmesg --ctime --level=err,warn"],
            docs="operating.md#a-disk-that-hangs",
        )


def store_damaged(facts: Facts, _: Thresholds) -> Iterator[Alarm]:
    """Writes fail again and again, since what is stored is damaged."""
    if facts.damaged:
        yield Alarm(
            code="store_damaged",
            severity="critical",
            subject="the store",
            what=f"writes fail again and again, since rows are damaged; the store was reopened {facts.failures} times",
            mend="It does not mend itself. Stop the service, keep a copy of everything, restore a backup; without one, salvage.",
            commands=["oncelog salvage OLD NEW"],
            docs="operating.md#a-damaged-store",
        )


def topic_damaged(facts: Facts, _: Thresholds) -> Iterator[Alarm]:
    """A topic was met that cannot be read in full."""
    for each in facts.refused:
        if each.code == "topic_damaged":
            topic = _topic(each.namespace, each.topic)
            yield Alarm(
                code="topic_damaged",
                severity="critical",
                subject=f"topic {topic}",
                about={"namespace": each.namespace, "topic": each.topic},
                since_ms=each.first_ms,
                what=f"{topic} is refused rather than answered in part: {each.detail}",
                mend="Find out where, and why. Restore a backup, or read what is readable into a new topic and delete this one.",
                commands=[f"oncelog verify{_names(each.namespace, each.topic)}"],
                docs="operating.md#a-damaged-topic",
            )


def disk(facts: Facts, _: Thresholds) -> Iterator[Alarm]:
    """The disk is near its floor, or below it."""
    if facts.disk_state not in ("low", "full"):
        return
    full = facts.disk_state == "full"
    floor = f"the floor of {size(facts.disk_floor)} (min_free_bytes)"
    what = f"{size(facts.disk_free)} are free on the disk, {'below' if full else 'less than twice'} {floor}"
    if full:
        what += f": nothing more is taken in, {count(facts.disk_refused, 'request')} refused so far; reading and deleting go on"
    else:
        what += ": below it nothing more is taken in"
    yield Alarm(
        code="disk_full" if full else "disk_low",
        severity="critical" if full else "warning",
        subject="the disk",
        about={"freeBytes": int(facts.disk_free), "minFreeBytes": facts.disk_floor},
        what=what,
        mend="Delete topics that are not needed, trim them or give them a shorter ttl; the space follows within a minute. Or "
        "give the store a larger disk.",
        commands=["oncelog status", "oncelog topic update TOPIC --ttl SECONDS", "oncelog topic delete TOPIC"],
        docs="operating.md#a-full-disk",
    )


# --- topics


def held(facts: Facts, thresholds: Thresholds) -> Iterator[Alarm]:
    """A transaction that is not decided holds a topic's consumers back."""
    for each in sorted(facts.held, key=lambda each: each.since_ms):
        age = facts.now_ms - each.since_ms
        if age >= thresholds.held_ms:
            yield _held(facts, each, age)


def _held(facts: Facts, each: Held, age: int) -> Alarm:
    topic = _topic(each.namespace, each.topic)
    whose = f" of {each.owner}" if each.owner else f" of producer {', '.join(each.producers)}" if each.producers else ""
    behind = f"{count(each.behind, 'message')} from it on, which no consumer is given"
    stops = f"; {count(each.subscriptions, 'subscription')} stop there" if each.subscriptions else ""
    what = f"transaction {each.pointer}{whose} has held {topic} back for {span(age)}: {behind}{stops}"
    show = f"oncelog tx show {each.pointer}"
    if each.resource is not None:
        what += f"; it is prepared, and {each.resource} decides it"
        mend = "Have the program that prepared it recover its database (SqlParticipant.recover): that commits or aborts it."
        commands = [show]
    elif each.state == "in_progress":
        if each.expires_ms is not None:
            what += f"; it times out in {span(max(0, each.expires_ms - facts.now_ms))}"
        mend = "Find out what its client does. If it is gone, abort the transaction: its messages are rolled back. One that is "
        mend += "prepared by then is refused, since its database decides it."
        commands = [show, f"oncelog tx abort {each.pointer} --unless-prepared"]
    elif each.state is None:
        what += "; no transaction service that could be asked here knows it"
        mend = (
            "Another transaction service handed it out, Tephra say, and that one knows how it ended: ask it first. In progress "
            "there: wait, or end it there. What nobody ends counts as committed once it is as old as a transaction may become."
        )
        ended = "there"
        if is_own(each.pointer):
            what += ", although its number is one that ours hands out: it may have been put back to an earlier time"
            mend = (
                "The transaction service that handed it out knows how it ended: where its store can still be found, have that "
                "used again. Else find out from its client: it never counts by its age, and nobody else ends it."
            )
            ended = "for its client"
        names = _names(each.namespace, each.topic, str(each.pointer))
        mend += (
            f" Once you know, say so on this topic, for good: committed {ended}, `oncelog topic settle --committed{names}`; "
            f"rolled back or invalid {ended}, `oncelog topic settle --rolled-back{names}`. A wrong word loses messages, or shows "
            "some that never counted."
        )
        # None of the two is a command to run before that is known: what is rolled back by mistake is lost.
        commands = ["oncelog tx list --state held", f"oncelog topic show{_names(each.namespace, each.topic)}"]
    else:
        what += f"; it is {each.state}, and the topic is told so in a moment"
        mend = "Wait a moment. If it stays so, look at the log of the service: the topic cannot be told."
        commands = [show]
    return Alarm(
        code="topic_held",
        severity="critical" if age >= LONG_HELD_MS else "warning",
        subject=f"topic {topic}",
        about={"namespace": each.namespace, "topic": each.topic, "writePointer": each.pointer, "behind": each.behind},
        since_ms=each.since_ms,
        what=what,
        mend=mend,
        commands=commands,
        docs="transactions.md#what-a-topic-holds-back",
    )


def lag(facts: Facts, thresholds: Thresholds) -> Iterator[Alarm]:
    """A subscription lags: many messages before it, and the oldest of them old."""
    for each in sorted(facts.lagging, key=lambda each: -each.lag):
        age = None if each.oldest_ms is None else facts.now_ms - each.oldest_ms
        if each.lag < thresholds.lag_messages or age is None or age < thresholds.lag_ms:
            continue
        topic, names = _topic(each.namespace, each.topic), _names(each.namespace, each.topic, each.name)
        yield Alarm(
            code="subscription_lags",
            severity="warning",
            subject=f"subscription {each.name} of {topic}",
            about={"namespace": each.namespace, "topic": each.topic, "subscription": each.name, "lag": each.lag},
            since_ms=each.oldest_ms,
            what=f"{count(each.lag, 'message')} are before subscription {each.name} of {topic}, the oldest {span(age)} old: its "
            "consumer is stopped, or slower than what comes",
            mend="Start its consumer, or a faster one. If nobody consumes any more, delete the subscription; if the messages are "
            "not needed, move it to the end.",
            commands=[
                f"oncelog subscription show{names}",
                f"oncelog subscription seek --to latest{names}",
                f"oncelog subscription delete{names}",
            ],
            docs="consumers.md#lag-and-loss",
        )


def replay(facts: Facts, _: Thresholds) -> Iterator[Alarm]:
    """A restart would replay much of a topic."""
    for each in sorted(facts.replays, key=lambda each: -each.messages):
        if each.messages >= REPLAY_MESSAGES:
            topic = _topic(each.namespace, each.topic)
            yield Alarm(
                code="snapshot_old",
                severity="warning",
                subject=f"topic {topic}",
                about={"namespace": each.namespace, "topic": each.topic, "messages": each.messages},
                what=f"a restart now would replay {count(each.messages, 'message')} of {topic}, since its newest snapshot is "
                "that far behind",
                mend="If a transaction holds the topic back, end that: no snapshot passes it. Else look at the log of the "
                "service for a snapshot that failed; a clean stop (SIGTERM) leaves one.",
                commands=["oncelog tx list --state held"],
                docs="operating.md#alarms",
            )


# --- producers


_FENCED_BY = {
    "producer": "has had it forgotten, the topic made anew, or the store restored",
    "subscription": "has moved or deleted it, or restored the store",
}
"""What refuses the one that runs though there is no other."""


def fenced(facts: Facts, _: Thresholds) -> Iterator[Alarm]:
    """A producer, a consumer or a commit was refused, since a newer incarnation of the same name runs."""
    for each in _lately(facts, "producer_fenced", "consumer_fenced"):
        where = f" of {_topic(each.namespace, each.topic)}" if each.topic else ""
        kind = "producer" if each.code == "producer_fenced" else "subscription"
        show = f"oncelog {kind} show{_names(each.namespace, each.topic, each.name)}"
        which = f" under epoch {each.refused}" if each.refused else ""
        newest = f", and the newest is {each.newest}" if each.newest else ""
        yield Alarm(
            code=each.code,
            severity="warning",
            subject=f"{kind} {each.name}{where}",
            about=_about(each, kind) | {"refused": each.refused, "newest": each.newest, "times": each.times},
            since_ms=each.first_ms,
            what=f"{kind} {each.name}{where} was refused {times(each.times)}{which}{newest}, the last time "
            f"{span(facts.now_ms - each.last_ms)} ago: two run under one name, or somebody {_FENCED_BY[kind]}",
            mend="Where two run, the newer one works, and the older one stores nothing. Stop one of the two, or give it another "
            "name. Where none is newer, as after a restore, begin that one again, if it does not do so by itself: it is told "
            f"where to go on. This goes away {span(LATELY_MS)} after the last refusal.",
            commands=[show] if each.topic else [],
            docs="guarantees.md#epochs" if kind == "producer" else "consumers.md#one-at-a-time",
        )


def gaps(facts: Facts, _: Thresholds) -> Iterator[Alarm]:
    """A producer that refuses gaps left sequence ids out."""
    for each in _lately(facts, "sequence_gap"):
        where = f" of {_topic(each.namespace, each.topic)}" if each.topic else ""
        yield Alarm(
            code="sequence_gap",
            severity="warning",
            subject=f"producer {each.name}{where}",
            about=_about(each, "producer") | {"received": each.refused, "expected": each.newest, "times": each.times},
            since_ms=each.first_ms,
            what=f"producer {each.name}{where} was refused {times(each.times)}, the last time "
            f"{span(facts.now_ms - each.last_ms)} ago: it sent sequence id {each.refused}, and {each.newest} is next",
            mend="Messages before that one have not arrived: have the producer send them, from the one that is next.",
            commands=[f"oncelog producer show{_names(each.namespace, each.topic, each.name)}"] if each.topic else [],
            docs="guarantees.md#gaps",
        )


# --- clients and load


def shed(facts: Facts, _: Thresholds) -> Iterator[Alarm]:
    """Clients take more than there is: connections and requests are refused, or ended for others' sake."""
    found = {reason: often for reason, often in facts.shed.items() if often}
    if found:
        said = ", ".join(f"{reason} {times(often)}" for reason, often in sorted(found.items()))
        yield Alarm(
            code="overloaded",
            severity="warning",
            subject="clients",
            about=dict(found),
            what=f"connections and requests were refused, or ended for others' sake, within the last {span(LATELY_MS)}: {said}",
            mend="Find the client that takes so much, and have it take less; or raise the bound, if the machine can do more.",
            commands=["oncelog top", "oncelog config show"],
            docs="operating.md#when-clients-take-too-much",
        )


def quotas(facts: Facts, _: Thresholds) -> Iterator[Alarm]:
    """Requests were refused lately by a quota."""
    held_topics = {(each.namespace, each.topic) for each in facts.held}
    for each in _lately(facts, "quota_exceeded"):
        who = f" of {each.who}" if each.who else ""
        mend = "Have the clients send less, or more in one request; or raise the bound that is named."
        commands = ["oncelog top"]
        if each.name == "max.bytes" and (each.namespace, each.topic) in held_topics:
            mend = "A transaction there is not decided, and nothing from its first message on is trimmed: end it. " + mend
            commands.insert(0, "oncelog tx list --state held")
        yield Alarm(
            code=each.code,
            severity="warning",
            subject=f"topic {_topic(each.namespace, each.topic)}" if each.topic else each.who or "clients",
            about=_about(each, "quota") | {"times": each.times},
            since_ms=each.first_ms,
            what=f"requests were refused by a quota {times(each.times)}, the last{who} "
            f"{span(facts.now_ms - each.last_ms)} ago: {each.detail}",
            mend=mend,
            commands=commands,
            docs="operating.md#quotas",
        )


def transactions_unreachable(facts: Facts, _: Thresholds) -> Iterator[Alarm]:
    """The transaction service does not answer."""
    if not facts.transactions_reachable:
        where = facts.transactions_url or "the instance that serves transactions"
        yield Alarm(
            code="transactions_unreachable",
            severity="critical",
            subject="the transaction service",
            about={"url": where},
            what=f"the transaction service does not answer at {where}: nothing is published in transactions, and topics hold "
            "back what is not decided",
            mend="Start it, or mend the way to it. Where it refuses this service, as the log says then, name a token that has "
            "the grant service there: transactions_token.",
            commands=[f"oncelog doctor --url {shlex.quote(where)}"] if facts.transactions_url else ["oncelog cluster"],
            docs="transactions.md#the-service-alone",
        )


def failing(facts: Facts, _: Thresholds) -> Iterator[Alarm]:
    """A background task met an unforeseen error."""
    for each in facts.failing:
        yield Alarm(
            code="task_failing",
            severity="warning",
            subject=f"the task {each}",
            about={"task": each},
            what=f"{each} met an unforeseen error within the last minute, and goes on",
            mend="The log of the service has the traceback: report it.",
            docs="operating.md#run-it",
        )


# --- clocks, and the cluster


def clock(facts: Facts, _: Thresholds) -> Iterator[Alarm]:
    """The machine's clock was set back, or the store knows a later time than it."""
    if facts.clock_behind_ms >= CLOCK_BEHIND_MS:
        yield _clock(
            f"the clock of the service's machine was set back by {span(facts.clock_behind_ms)}: until it has caught up, all "
            "messages are stamped with one time, and nothing expires"
        )
    elif facts.ahead is not None and facts.ahead[2] >= CLOCK_BEHIND_MS:
        namespace, topic, ms = facts.ahead
        yield _clock(
            f"the newest message of {_topic(namespace, topic)} is {span(ms)} ahead of the clock of the service's machine, "
            "which was ahead once, or is behind now"
        )


def _clock(what: str) -> Alarm:
    return Alarm(
        code="clock_back",
        severity="warning",
        subject="the clock",
        what=what,
        mend="Set the clock by NTP, and let it be slewed, not stepped. Nothing is lost or doubled by it.",
        commands=["timedatectl status"],
        docs="operating.md#alarms",
    )


def cluster(facts: Facts, _: Thresholds) -> Iterator[Alarm]:
    """An instance is gone without a word, does not answer, or has another time."""
    for each in facts.members:
        if not each.alive:
            code, what = "instance_missing", (
                f"the instance at {each.url} is gone without having left, with {count(each.leases, 'lease')}: others take over "
                "what it served when it is asked for"
            )  # fmt: skip
            mend = (
                "Find out why it ended, and start it again. If it is not to come again, this goes once others serve what it had."
            )
        elif not each.answers:
            code, what = "instance_silent", f"{each.url} is alive by its heartbeat, and does not answer here"
            mend = "Look at the network between the two, at its TLS, and at its log: clients of its topics may meet the same."
        elif each.apart_ms is not None and abs(each.apart_ms) >= CLOCKS_APART_MS:
            direction = "ahead of" if each.apart_ms > 0 else "behind"
            code, what = "clocks_apart", f"the clock of {each.url} is {span(abs(each.apart_ms))} {direction} this one's"
            mend = "Set the clocks of all machines by NTP: a topic that moves between them is stamped by each."
        else:
            continue
        yield Alarm(
            code=code,
            severity="warning",
            subject=f"instance {each.url or each.id}",
            about={"instance": each.id, "url": each.url},
            what=what,
            mend=mend,
            commands=["oncelog cluster"],
            docs="cluster.md",
        )


# --- what comes to its end


def certificate(facts: Facts, _: Thresholds) -> Iterator[Alarm]:
    """The certificate of the service ends soon."""
    if facts.certificate_ends_ms is None:
        return
    left = facts.certificate_ends_ms - facts.now_ms
    if left <= CERTIFICATE_MS:
        ends = "has expired: clients refuse it" if left <= 0 else f"expires in {span(left)}; clients refuse it then"
        yield Alarm(
            code="certificate_ends",
            severity="critical" if left <= CERTIFICATE_LAST_MS else "warning",
            subject="the certificate",
            about={"file": facts.certificate, "endsMs": facts.certificate_ends_ms},
            what=f"the certificate in {facts.certificate} {ends}",
            mend="Put a new one in its place, and its key: they are read within a second, connections go on.",
            commands=[f"openssl x509 -noout -enddate -in {shlex.quote(facts.certificate)}"],
            docs="operating.md#tls",
        )


def tokens(facts: Facts, _: Thresholds) -> Iterator[Alarm]:
    """A token ends soon."""
    for each in sorted(facts.tokens, key=lambda each: each.expires_ms):
        left = each.expires_ms - facts.now_ms
        if 0 < left <= min(TOKEN_MS, TOKEN_PART * (each.expires_ms - each.created_ms)):
            yield Alarm(
                code="token_ends",
                severity="warning",
                subject=f"token {each.id} of {each.name}",
                about={"token": each.id, "name": each.name, "endsMs": each.expires_ms},
                what=f"token {each.id} of {each.name} expires in {span(left)}: whoever carries it is refused then",
                mend="Make another one under the same name, give it to its holder, and revoke this one.",
                commands=["oncelog token list", f"oncelog token revoke {each.id}"],
                docs="access.md#tokens",
            )


# --- how it is set up


def restored(facts: Facts, _: Thresholds) -> Iterator[Alarm]:
    """The store was restored, or put back by other means, not long ago."""
    if facts.restored_ms is not None and facts.now_ms - facts.restored_ms <= RESTORED_MS:
        yield Alarm(
            code="store_restored",
            severity="info",
            subject="the store",
            since_ms=facts.restored_ms,
            what=f"the store was put back to an earlier state {span(max(0, facts.now_ms - facts.restored_ms))} ago: what was "
            "acknowledged behind that is not in it, and clients of before are refused until they open again",
            mend="See whom nobody tells, and revoke again the tokens that were revoked in the lost time.",
            commands=["oncelog token list"],
            docs="operating.md#restore",
        )


def exposed(facts: Facts, _: Thresholds) -> Iterator[Alarm]:
    """Others can read along, or do everything."""
    if not facts.is_local and not facts.speaks_tls:
        yield Alarm(
            code="without_tls",
            severity="warning",
            subject="the address",
            about={"host": facts.host},
            what=f"the service listens on {facts.host} without TLS: tokens, messages and answers can be read and changed on "
            "their way",
            mend="Name a certificate (--tls-certificate), or let nobody reach this port but a proxy that speaks TLS, and say so "
            "by its URL (--advertised-url https://…).",
            docs="operating.md#tls",
        )
    if not facts.asks_for_credentials and (facts.behind_a_proxy or not facts.is_local):
        yield Alarm(
            code="open_to_all",
            severity="warning",
            subject="the address",
            about={"host": facts.host},
            what="nobody is asked for a credential, and the service is asked for by names of other machines: whoever reaches its "
            "proxy may do everything",
            mend="Make a token, or name an issuer or a CA of clients.",
            commands=["oncelog token create NAME --grant admin"],
            docs="access.md",
        )


def descriptors(facts: Facts, _: Thresholds) -> Iterator[Alarm]:
    """Too few files may be open for as many connections as are wanted."""
    needed = facts.connections_wanted + _DESCRIPTORS_OF_ITS_OWN
    if facts.descriptors < needed:
        yield Alarm(
            code="few_descriptors",
            severity="info",
            subject="the process",
            about={"limit": facts.descriptors, "maxConnections": facts.connections_wanted},
            what=f"the process may have {facts.descriptors} files open, and max_connections is {facts.connections_wanted}: fewer "
            "connections are taken than that",
            mend=f"Raise the limit of open files to {needed} (systemd: LimitNOFILE), or lower max_connections.",
            commands=[f"ulimit -n {needed}"],
            docs="operating.md#run-it",
        )


RULES: Sequence[Rule] = (
    *(store_closed, store_stalled, store_damaged, topic_damaged, disk, transactions_unreachable, held, lag, fenced, gaps),
    *(shed, quotas, cluster, clock, certificate, tokens, failing, replay, exposed, restored, descriptors),
)
"""In the order in which their alarms are shown, where these are as severe."""


# --- words


def span(ms: float) -> str:
    """How long something is, as people say it."""
    for unit, of_it, most in (("ms", 1, 1_000), ("s", 1_000, 120), ("min", 60_000, 120), ("h", 3_600_000, 48)):
        if ms < most * of_it:
            return f"{ms / of_it:.0f} {unit}"
    return f"{ms / 86_400_000:.0f} days"


def size(amount: float) -> str:
    """How many bytes something has, as people say it."""
    if amount == float("inf"):
        return "unlimited bytes"
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if amount < 1_024:
            return f"{amount:.0f} {unit}" if amount >= 10 or unit == "bytes" else f"{amount:.1f} {unit}"
        amount /= 1_024
    return f"{amount:.1f} TiB"


def count(number: int, what: str) -> str:
    """So many of something."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def times(number: int) -> str:
    """How often."""
    return "once" if number == 1 else f"{number:,} times"


def _topic(namespace: str, topic: str) -> str:
    return f"{namespace}/{topic}"


def _names(namespace: str, *names: str) -> str:
    """The end of a command: names that clients chose, which are pasted into a shell and must be taken for no option there."""
    space = "" if namespace == DEFAULT_NAMESPACE else f" --namespace {shlex.quote(namespace)}"
    ends = " --" if any(name.startswith("-") for name in names) else ""
    return f"{space}{ends} {shlex.join(names)}"


def _about(each: Refused, kind: str) -> dict[str, str | int]:
    named = {"namespace": each.namespace, "topic": each.topic, kind: each.name}
    return {name: value for name, value in named.items() if value}


def _lately(facts: Facts, *codes: str) -> list[Refused]:
    found = [each for each in facts.refused if each.code in codes and facts.now_ms - each.last_ms < LATELY_MS]
    return sorted(found, key=lambda each: -each.last_ms)
