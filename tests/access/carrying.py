"""Requests that carry a token, to a service that the tests of access run."""

from __future__ import annotations

from typing import Any

import requests

from tests.rest.talk import Calls


class Carrying(Calls):
    """Somebody who carries a token, or nothing."""

    def __init__(self, url: str, secret: str | None = None, **headers: str) -> None:
        super().__init__(url, "")
        self.session.headers.update(headers)
        if secret is not None:
            self.session.headers["authorization"] = f"Bearer {secret}"

    def make(self, name: str, *grants: str, **fields: Any) -> dict[str, Any]:
        """Make a token, which must succeed."""
        made: dict[str, Any] = self.good("POST", "/v1/tokens", json={"name": name, "grants": list(grants), **fields})
        return made

    def create(self, name: str, *grants: str, **fields: Any) -> requests.Response:
        return self.request("POST", "/v1/tokens", json={"name": name, "grants": list(grants), **fields})

    def carrying(self, secret: str, **headers: str) -> Carrying:
        """Somebody else at the same service."""
        return Carrying(self.base, secret, **headers)

    def holding(self, name: str, *grants: str, **fields: Any) -> Carrying:
        """Somebody with these grants."""
        return self.carrying(self.make(name, *grants, **fields)["secret"])

    def revoke(self, token_id: str) -> requests.Response:
        return self.request("DELETE", f"/v1/tokens/{token_id}")

    @property
    def is_let_in(self) -> bool:
        """Whether its credential holds; with any other answer than yes or no, an error."""
        answer = self.request("GET", "/v1/namespaces")
        assert answer.status_code in (200, 401), answer.text
        return answer.status_code == 200
