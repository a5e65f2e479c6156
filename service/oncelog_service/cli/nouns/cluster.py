"""`oncelog cluster`"""

from __future__ import annotations

import typer

from oncelog_service.cli.session import Session, command


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "cluster", namespaced=False, reads=True)(show)


def show(session: Session) -> None:
    """Show which instances share the service's store, and who serves which topic."""
    found = session.client.cluster()
    serves: dict[str, list[str]] = {each.id: [] for each in found.instances}
    for lease in found.leases:
        serves.setdefault(lease.instance, []).append(lease.name)
    urls = {each.id: each.url for each in found.instances}
    left = {each.id: f"{each.expires_in_ms} ms" for each in found.instances}
    rows = [
        [id_[:8], urls.get(id_, "gone"), left.get(id_, "expired"), str(len(names)), ", ".join(names)]
        for id_, names in serves.items()
    ]
    session.out.table(found, ["instance", "url", "alive for", "leases", "serves"], rows)
