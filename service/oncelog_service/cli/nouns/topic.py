"""`oncelog topic …`"""

from __future__ import annotations

from typing import Annotated

import typer

from oncelog.errors import NotAllowed, PropertiesChanged
from oncelog.wire.models import HeldMessages
from oncelog_service.cli.frame.lazy import noun
from oncelog_service.cli.output import held_text
from oncelog_service.cli.session import Session, Topic, Yes, command
from oncelog_service.cli.values import Policy, parse_bound, parse_message_id, parse_properties

group = noun()

Properties = Annotated[list[str] | None, typer.Option("--property", metavar="NAME=VALUE", help="A property; repeatable.")]
Ttl = Annotated[int | None, typer.Option("--ttl", min=1, help="Seconds that messages live.")]
Deduplication = Annotated[
    Policy | None, typer.Option("--deduplication", help="Refuse duplicates here; inherit: as the namespace says.")
]

_HELD_SHOWN = 20
"""Write pointers that are shown with a topic; how many there are is shown, too."""

_TRIES = 10
"""To change properties; each one that fails is one in which somebody else has changed them."""

_COUNTED = "generation"
"""The one property that the service sets itself."""


@command(group, "create")
def create(
    session: Session,
    topic: Topic,
    properties: Properties = None,
    ttl: Ttl = None,
    deduplication: Deduplication = None,
    exist_ok: Annotated[bool, typer.Option("--exist-ok", help="Leave a topic that exists as it is; exit 0.")] = False,
) -> None:
    """Create a topic."""
    chosen = _overlaid({}, properties, ttl, deduplication)
    session.client.create_topic(topic, chosen, session.namespace, exist_ok=exist_ok)
    session.out.result({"namespace": session.namespace, "topic": topic}, f"topic {session.namespace}/{topic} is there")


@command(group, "list", reads=True)
def list_(session: Session) -> None:
    """List the topics of a namespace."""
    names = session.client.topics(session.namespace)
    session.out.table(names, ["topic"], [[name] for name in names])


@command(group, "show", reads=True)
def show(session: Session, topic: Topic) -> None:
    """Show a topic's properties, where its log begins and ends, and which transactions hold messages back."""
    properties = session.client.topic(topic, session.namespace).properties
    stats = session.client.stats(topic, session.namespace).model_dump(mode="json")
    held: list[HeldMessages] | None = None
    try:
        held = session.client.held_on(topic, session.namespace, _HELD_SHOWN)
    except NotAllowed as error:  # whoever has any grant on the topic may see the rest
        session.out.note(f"which write pointers hold messages back is not shown: that needs the grant {error.right}")
    value = {
        "namespace": session.namespace,
        **stats,
        "held": None if held is None else [each.model_dump(mode="json") for each in held],
        "properties": properties,
    }
    rows = [(name.replace("_", " "), field) for name, field in stats.items()]
    rows += [(f"held by {each.write_pointer}", held_text(each)) for each in held or ()]
    rows += [(f"property {name}", text) for name, text in sorted(properties.items()) if name != _COUNTED]
    session.out.table(value, ["", f"{session.namespace}/{topic}"], rows)


@command(group, "update")
def update(
    session: Session,
    topic: Topic,
    properties: Properties = None,
    ttl: Ttl = None,
    deduplication: Deduplication = None,
    replace: Annotated[bool, typer.Option("--replace", help="Drop the properties that are not named.")] = False,
) -> None:
    """Change a topic's properties; those that are not named stay as they are."""
    if not replace and not properties and ttl is None and deduplication is None:
        raise typer.BadParameter("nothing to change: name a --property, --ttl or --deduplication, or --replace all")
    for left in reversed(range(_TRIES)):
        present = None if replace else session.client.topic(topic, session.namespace).properties
        chosen = _overlaid(present or {}, properties, ttl, deduplication)
        chosen.pop(_COUNTED, None)
        try:
            session.client.update_topic(topic, chosen, session.namespace, expected=present)
            break
        except PropertiesChanged:  # by somebody else, since we looked: those that are not named stay as they are now
            if not left:
                raise
    value = {"namespace": session.namespace, "topic": topic, "properties": chosen}
    session.out.result(value, f"topic {session.namespace}/{topic} is updated")


@command(group, "settle")
def settle(
    session: Session,
    topic: Topic,
    pointer: Annotated[int, typer.Argument(metavar="POINTER", min=1, help="Write pointer.", show_default=False)],
    committed: Annotated[
        bool, typer.Option("--committed/--rolled-back", help="Whether its messages count or are rolled back.", show_default=False)
    ],
    yes: Yes = False,
) -> None:
    """End a write pointer that our transaction service does not know on this topic. Those that it knows: `tx abort`."""
    become = "count from now on" if committed else "are rolled back"
    session.confirm(f"End write pointer {pointer} on {session.namespace}/{topic}? Its messages {become}, for good.", yes)
    session.client.settle_topic(topic, pointer, committed=committed, namespace=session.namespace)
    value = {"namespace": session.namespace, "topic": topic, "write_pointer": pointer, "committed": committed}
    session.out.result(value, f"write pointer {pointer} is ended on {session.namespace}/{topic}: its messages {become}")


@command(group, "trim")
def trim(
    session: Session,
    topic: Topic,
    before: Annotated[
        str, typer.Option("--before", metavar="OFFSET|TIME", help="An offset, or an ISO time.", show_default=False)
    ],
    yes: Yes = False,
) -> None:
    """Take everything before an offset or a time out of a topic, for good."""
    bound = parse_bound(before, "--before")
    generation = session.client.stats(topic, session.namespace).generation  # of the topic that is asked about
    session.confirm(f"Trim {session.namespace}/{topic}? All messages before {before} are gone, for good.", yes)
    earliest = session.client.trim_topic(topic, bound, session.namespace, generation=generation)
    value = {"namespace": session.namespace, "topic": topic, "earliest_offset": earliest}
    session.out.result(value, f"topic {session.namespace}/{topic} begins at offset {earliest}")


@command(group, "erase")
def erase(
    session: Session,
    topic: Topic,
    offset: Annotated[int | None, typer.Option("--offset", min=0, help="The message's offset.", show_default=False)] = None,
    message_id: Annotated[
        str | None, typer.Option("--message-id", metavar="HEX", help="Its id, in place of the offset.", show_default=False)
    ] = None,
    yes: Yes = False,
) -> None:
    """Erase the payload and the properties of one message, for good; its place in the log stays."""
    if (offset is None) == (message_id is None):
        raise typer.BadParameter("name the message by --offset or by --message-id, one of them")
    at = parse_message_id(message_id, "--message-id") if message_id is not None else offset
    assert at is not None
    generation = session.client.stats(topic, session.namespace).generation
    session.confirm(f"Erase what the message at {at} of {session.namespace}/{topic} says, for good?", yes)
    erased = session.client.erase_message(topic, at, session.namespace, generation=generation)
    value = {"namespace": session.namespace, "topic": topic, **erased.model_dump(mode="json")}
    session.out.result(value, f"the message at offset {erased.offset} of {session.namespace}/{topic} is erased")


@command(group, "delete")
def delete(
    session: Session,
    topic: Topic,
    generation: Annotated[
        int | None, typer.Option("--generation", min=1, help="Only this one; else that of this moment.", show_default=False)
    ] = None,
    yes: Yes = False,
) -> None:
    """Delete a topic with its messages and producers."""
    if generation is None:
        generation = int(session.client.topic(topic, session.namespace).properties[_COUNTED])  # of the topic that is asked about
    session.confirm(f"Delete topic {session.namespace}/{topic} with all its messages?", yes)
    session.client.delete_topic(topic, session.namespace, generation=generation)
    session.out.result({"namespace": session.namespace, "deleted": topic}, f"topic {session.namespace}/{topic} is deleted")


def _overlaid(
    present: dict[str, str], properties: list[str] | None, ttl: int | None, deduplication: Policy | None
) -> dict[str, str]:
    chosen = {**present, **parse_properties(properties or [])}
    if ttl is not None:
        chosen["ttl"] = str(ttl)
    if deduplication is Policy.INHERIT:
        chosen.pop("deduplication", None)
    elif deduplication is not None:
        chosen["deduplication"] = "true" if deduplication is Policy.ON else "false"
    return chosen
