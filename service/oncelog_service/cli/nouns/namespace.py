"""`oncelog namespace …`"""

from __future__ import annotations

from typing import Annotated

import typer

from oncelog.wire.media import DEFAULT_NAMESPACE
from oncelog.wire.models import NamespacePolicies
from oncelog_service.cli.frame.lazy import noun
from oncelog_service.cli.session import Session, command
from oncelog_service.cli.values import Full, Policy

group = noun()

_QUOTAS = ("max_messages_per_second", "max_bytes_per_second", "max_bytes")
_WORDS = {None: Policy.INHERIT, True: Policy.ON, False: Policy.OFF}


@command(group, "list", namespaced=False, reads=True)
def list_(session: Session) -> None:
    """List every namespace that has a topic or a policy."""
    names = session.client.namespaces()
    session.out.table(names, ["namespace"], [[name] for name in names])


@command(group, "show", namespaced=False, reads=True)
def show(session: Session, name: Annotated[str, typer.Argument(help="Name of the namespace.")] = DEFAULT_NAMESPACE) -> None:
    """Show what holds for the namespace's topics that do not say otherwise."""
    policies = session.client.policies(name)
    value = {"namespace": name, **policies.model_dump(mode="json")}
    quotas = [(each, getattr(policies, each) or "none") for each in _QUOTAS]
    full = ("max_bytes_policy", policies.max_bytes_policy or Full.REFUSE.value)
    session.out.table(value, ["", name], [("deduplication", _WORDS[policies.deduplication].value), *quotas, full])


@command(group, "set", namespaced=False)
def set_(
    session: Session,
    name: Annotated[str, typer.Argument(help="Name of the namespace.", show_default=False)],
    deduplication: Annotated[
        Policy | None,
        typer.Option("--deduplication", help="Refuse duplicates; inherit: as the service says.", show_default=False),
    ] = None,
    max_messages_per_second: Annotated[
        int | None, typer.Option(min=0, help="Of each topic; 0: as many as come.", show_default=False)
    ] = None,
    max_bytes_per_second: Annotated[
        int | None, typer.Option(min=0, help="Of each topic; 0: as many as come.", show_default=False)
    ] = None,
    max_bytes: Annotated[
        int | None, typer.Option(min=0, help="That each topic's messages may take; 0: no limit.", show_default=False)
    ] = None,
    max_bytes_policy: Annotated[
        Full | None, typer.Option(help="A topic that is full refuses more, or trims its oldest messages.", show_default=False)
    ] = None,
) -> None:
    """Set what holds for the namespace's topics that do not say otherwise; what is not named stays."""
    quotas = dict(zip(_QUOTAS, (max_messages_per_second, max_bytes_per_second, max_bytes), strict=True))
    changes: dict[str, object] = {each: quota or None for each, quota in quotas.items() if quota is not None}
    if max_bytes_policy is not None:
        changes["max_bytes_policy"] = max_bytes_policy.value
    if deduplication is not None:
        changes["deduplication"] = deduplication.value_on_wire
    if not changes:
        raise typer.BadParameter("name what is to be set")
    policies = NamespacePolicies.model_validate({**session.client.policies(name).model_dump(), **changes})
    session.client.set_policies(policies, name)
    value = {"namespace": name, **policies.model_dump(mode="json")}
    said = [f"deduplication {_WORDS[policies.deduplication].value}"]
    said += [
        f"{each} {getattr(policies, each)}" for each in (*_QUOTAS, "max_bytes_policy") if getattr(policies, each) is not None
    ]
    session.out.result(value, f"namespace {name}: {', '.join(said)}")
