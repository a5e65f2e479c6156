"""Who a request is from: the one place where credentials become a principal.

The invariants:

* As soon as there is any token, or the service is to be reached from elsewhere, a request without a credential that holds is
  refused. The last token that may make others is not revoked by a request: what was locked does not open by it.
* A token that was revoked or has expired is refused from then on; at other instances over the same store within a second.
* A token of the store that stands in the settings, too, is what the store says of it: a service that was begun where a client's
  variables are set (`ONCELOG_TOKEN_FILE` is of both) makes nobody admin by that, and does not outlive a revocation.
* Secrets are compared by their hashes, looked up in a dict: how long that takes says nothing of a secret that is not known.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from oncelog.errors import InvalidRequest, StorageUnavailable, TokenNotFound, Unauthorized
from oncelog_service.access.checks import Checks, Unchecked
from oncelog_service.access.grants import EVERYBODY, EVERYTHING, Grant, Principal
from oncelog_service.access.issuer import Issuer
from oncelog_service.access.tokens import CERTIFICATE, Token, digest_of, draw, read_tokens
from oncelog_service.cluster.leases import SETUP, Leases, held_briefly
from oncelog_service.group_commit import Writer
from oncelog_service.storage.port import Batch, Store, StoreError, Table

_log = logging.getLogger(__name__)

REREAD_SECONDS = 1.0
"""How soon an instance knows what another one has changed."""


def _nothing() -> None:
    pass


class Access:
    """Knows the credentials that hold, over all openings of a store."""

    def __init__(
        self,
        configured: str | None,
        now_ms: Callable[[], int],
        *,
        locked: bool,
        issuer: Issuer | None = None,
        checks: Checks | None = None,
    ) -> None:
        """``configured``: a token from the settings, with every right, unless the store has it.

        ``locked``: nobody is let in without a credential.
        ``issuer``: verifies tokens that somebody else has signed; with one nobody is let in without a credential.
        ``checks``: has that done beside the event loop.
        """
        self.issuer = issuer
        self._checks = checks
        self._now_ms = now_ms
        self._configured = configured
        self._locked = locked
        self.trusts_all = False
        """Whoever reaches this may do everything, whatever is shown and whatever tokens there are: it is of the same process."""
        self._tokens: dict[str, Token] = {}
        self._by_digest: dict[bytes, tuple[Token | None, Principal]] = {}
        self._by_name: dict[str, list[tuple[Token, Principal]]] = {}
        self._changing = asyncio.Lock()
        self._opened: tuple[Store, Writer, Leases] | None = None
        self._instances_secret: str | None = None
        self._index([])

    # --- who asks

    @property
    def is_open(self) -> bool:
        """Tells whether everybody who reaches the service may do everything."""
        closed = self._locked or self._tokens or self._configured is not None or self.issuer is not None
        return self._opened is not None and not closed

    def principal_of(self, bearer: bytes | None, certificate: str | None = None, on_behalf: bytes = b"") -> Principal:
        """Tells who carries these. Raises Unauthorized; Unchecked: a signed token that :meth:`check` has to verify first.

        ``certificate``: the name in a client certificate that was verified. ``on_behalf``: whom another instance asks for.
        """
        if self.trusts_all:
            return EVERYBODY
        if bearer is not None:
            digest = digest_of(bearer)
            found = self._by_digest.get(digest)
            if found is None and self.issuer is not None and bearer.count(b".") == 2:
                return self._signed(self.issuer, bearer, digest)
            if found is None and self.is_open and self._instances_secret is None:
                return EVERYBODY  # its token is for when this service asks for one; another instance might know it already
            if found is None or not (found[0] is None or found[0].holds(self._now_ms())):
                raise Unauthorized
            return self._named(on_behalf.decode("latin-1")) if on_behalf and found[1].is_instance else found[1]
        if certificate is not None:
            return self._named(CERTIFICATE + certificate)
        if not self.is_open:
            raise Unauthorized
        return EVERYBODY

    def _signed(self, issuer: Issuer, bearer: bytes, digest: bytes) -> Principal:
        """Who carries a signed token: with the grants that it claims, and those of the rows of its name. Raises as above."""
        signed = issuer.known(digest, self._now_ms())
        if signed is None:
            raise Unchecked(bearer, digest)
        name = signed.principal.name
        held = self._held(name)
        if held:
            if signed.together is None or signed.together[0] != held:
                together = Principal(name, [grant for each in (signed.principal, *held) for grant in each.grants])
                signed.together = held, together
            return signed.together[1]
        if not signed.principal.grants:
            raise Unauthorized(f"nothing is granted to {name!r}: its token claims nothing; `oncelog token create` does it")
        return signed.principal

    def check(self, unchecked: Unchecked, address: str) -> asyncio.Future[None]:
        """Has a signed token verified, which comes from an address. Raises Unauthorized, Overloaded, as does what it returns."""
        if self._checks is None:
            raise Unauthorized
        return self._checks.begin(unchecked, address)

    def _named(self, name: str) -> Principal:
        held = self._held(name)
        if not held:
            raise Unauthorized(f"nothing is granted to {name[:100]!r}; `oncelog token create` does it")
        return held[0] if len(held) == 1 else Principal(name, [grant for each in held for grant in each.grants])

    def _held(self, name: str) -> tuple[Principal, ...]:
        """What the rows of a name grant at this moment."""
        now_ms = self._now_ms()
        return (*(principal for token, principal in self._by_name.get(name, ()) if token.holds(now_ms)),)

    @property
    def own_token(self) -> str | None:
        """What this instance shows to others over the same store."""
        return self._instances_secret or self._configured  # that of the store first: settings may differ for a while

    def configure(self, token: str) -> None:
        """Takes this as the token from the settings, which has every right unless it is one of the store, the one of before no
        more."""
        self._configured = token
        self._index(list(self._tokens.values()))

    # --- what is known

    async def open(self, store: Store, writer: Writer, leases: Leases, instances_secret: str | None) -> None:
        """Begins to know what the store knows. Raises StoreError."""
        async with self._changing:
            tokens = await asyncio.to_thread(read_tokens, store)
            self._instances_secret = instances_secret
            self._opened = store, writer, leases
            self._index(tokens)

    async def keep_up(self) -> None:
        """Learns what other instances over the same store change, until cancelled. Raises StoreError."""
        while True:
            await asyncio.sleep(REREAD_SECONDS / 2)
            async with self._changing:
                if self._opened is not None:
                    self._index(await asyncio.to_thread(read_tokens, self._opened[0]))

    @asynccontextmanager
    async def _changes(self, still: Callable[[], object]) -> AsyncIterator[Writer]:
        """One change at a time, over all instances, on what all have changed so far; also a caller who has gone and had handed
        something over. Raises StorageUnavailable, StorageFailed; and what ``still`` does, which is asked last: it may be the
        caller whose token was revoked by the change before."""
        async with self._changing:
            if self._opened is None:
                raise StorageUnavailable("the store is not open yet; nothing was done")
            store, writer, leases = self._opened
            async with held_briefly(leases, SETUP) as lease:
                writer.check()
                await writer.drained()
                try:
                    self._index(await asyncio.to_thread(read_tokens, store))
                except StoreError as error:
                    raise StorageUnavailable(f"the store cannot be read now; nothing was done: {error}") from error
                still()
                yield writer.under(lease)

    def _index(self, tokens: Sequence[Token]) -> None:
        known = {token.id: (token, principal) for token, principal in self._entries()}
        self._tokens = {token.id: token for token in tokens}
        self._by_name, self._by_digest = {}, {}
        for token in tokens:
            before, principal = known.get(token.id, (None, None))
            if principal is None or before != token:
                principal = Principal(token.name, map(Grant.parse, token.grants))
            self._by_name.setdefault(token.name, []).append((token, principal))
            if token.digest:
                self._by_digest[token.digest] = token, principal
        if self._instances_secret is not None:
            secret = self._instances_secret.encode()
            self._by_digest[digest_of(secret)] = None, Principal("oncelog", EVERYTHING, is_instance=True)
        if self._configured is not None:
            digest = digest_of(self._configured.encode())
            found, principal = self._by_digest.get(digest, (None, None))
            if found is not None and principal is not None:
                self._configured = None  # also when its row has gone: by that it must not become more
                _log.warning(
                    "the token of the settings is that of %s in the store, and may do what the store grants it, no more; "
                    "ONCELOG_TOKEN and ONCELOG_TOKEN_FILE are the service's own token where a service is begun", principal.name,
                )  # fmt: skip
            else:
                self._by_digest[digest] = None, Principal("settings", EVERYTHING, is_instance=True)

    def _entries(self) -> list[tuple[Token, Principal]]:
        return [entry for held in self._by_name.values() for entry in held]

    # --- tokens

    @property
    def tokens(self) -> list[Token]:
        """Lists them by name, the oldest first; those that have expired too."""
        return sorted(self._tokens.values(), key=lambda token: (token.name, token.created_ms, token.id))

    async def create(
        self, name: str, grants: Sequence[str], expires_in_ms: int | None, still: Callable[[], object] = _nothing
    ) -> tuple[Token, str | None]:
        """Makes a token, durable when this returns, and tells its secret. ``still``: raises once who asks may not any more.

        Raises InvalidRequest, StorageUnavailable.
        """
        async with self._changes(still) as writer:
            token, secret = draw(name, grants, self._now_ms(), expires_in_ms)
            if self.is_open and not self._keeps_admin([token]):
                raise InvalidRequest("the first token must have the grant admin and no end, or nobody could make another one")
            batch = Batch()
            token.put(batch)
            await writer.submit(batch, lambda: self._index([*self._tokens.values(), token]))
            return token, secret

    async def revoke(self, id: str, still: Callable[[], object] = _nothing) -> Token:  # noqa: A002
        """Ends a token, durably; ``still`` as above. Raises TokenNotFound; InvalidRequest: nobody could make another one;
        StorageUnavailable."""
        async with self._changes(still) as writer:
            token = self._tokens.get(id)
            if token is None:
                raise TokenNotFound(f"there is no token {id[:100]!r}; `oncelog token list` shows their ids")
            left = [each for each in self._tokens.values() if each.id != id]
            needed = not left or (self._keeps_admin([token]) and not self._keeps_admin(left))
            if needed and self._configured is None and self.issuer is None:
                raise InvalidRequest("this is the last token with the grant admin and without an end; create another one first")
            batch = Batch()
            batch.delete(Table.TOKEN, id.encode())
            await writer.submit(batch, lambda: self._index(left))
            return token

    @staticmethod
    def _keeps_admin(tokens: Sequence[Token]) -> bool:
        return any("admin" in token.grants and token.expires_ms is None and token.digest for token in tokens)
