"""What a page of another site can have a browser ask for: nothing.

A browser sends a request for whoever wrote the page, from where the service may listen for its owner alone. Three rules, each
judged by a request's head before anything else of it is looked at:

* It is addressed to a name of this service (Host). Else the name may be somebody's who had it point here: DNS rebinding, after
  which a browser takes the service for a part of that site.
* It does not come from a page of another origin. A browser says which (Origin), or that there is one (Sec-Fetch-Site), where it
  names none: images, scripts, frames, ``no-cors``. A link that a person follows is let through: it only reads, and no other
  page sees what is answered.
* A body says what it is, packed or not, and changes nothing under a type that a page may send without asking first, as forms do.
  What is put by CDAP's clients says nothing, where a setting serves them: a browser asks before it sends any PUT.

Nothing here answers a preflight, so whatever a browser asks for before it sends is refused by the browser itself. Other clients
send neither header, and name the service as they reach it.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from urllib.parse import urlsplit

from oncelog.errors import ForeignOrigin, HostNotAllowed, UnsupportedMediaType
from oncelog_service.config import Settings
from oncelog_service.rest.packing import CODINGS

_AUTHORITY = re.compile(rb"(\[[0-9a-f:.]+\]|[a-z0-9_-][a-z0-9._-]*?)\.?(?::[0-9]{1,5})?", re.IGNORECASE)
"""A name or address; a name may end in a dot, and a port may follow."""
_ORIGIN = re.compile(rb"https?://(.+)")
READING = ("GET", "HEAD")
_OWN = (b"same-origin", b"none")
"""Sec-Fetch-Site of a page of this service, and of an address that a person has typed. ``same-site`` is every port of a host."""
_UNASKED = (b"text/plain", b"multipart/form-data", b"application/x-www-form-urlencoded")
"""Media types that a page may send anywhere without asking first (CORS-safelisted)."""
_REMEMBERED = 256
"""Values of Host that are known to be good, or not; as many as clients send."""

GUARD = (
    "x-content-type-options: nosniff\r\n"
    "x-frame-options: DENY\r\n"
    "cross-origin-resource-policy: same-origin\r\n"
)  # fmt: skip
"""Headers of every answer: it is no script or style, in no frame, and no part of another site."""
CSP = "content-security-policy"
SHUT = "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
CLOSED = f"{CSP}: default-src 'none'; {SHUT}\r\n"
"""… and it loads nothing. A page for people brings a policy of its own instead, which ends in :data:`SHUT`."""


@dataclass(frozen=True)
class Names:
    """By which names a service may be asked."""

    hosts: frozenset[str]
    """Names without ports. A port says nothing: it may be that of a tunnel, and a rebinding page has the right one."""
    origins: frozenset[bytes] = frozenset()
    """Of pages that may ask beside those of the host that the request names: a proxy may give the service another name."""
    addresses: bool = False
    """Any address is one of ours, since no page has one as its name without having come from there; else only loopback."""
    all: bool = False
    """Every name is taken."""
    untyped_puts: bool = False
    """What is put may have a body that does not say what it is: a browser asks before it sends any PUT."""

    @classmethod
    def of(cls, settings: Settings) -> Names:
        """Loopback, the host it listens on, that of its advertised URL, and what the operator names.

        Beyond loopback every address is taken. So is every name, if the operator names none: there each request needs a
        credential, and a page that has rebound its name has none.
        """
        exposed = not settings.is_local
        named = _split(settings.allowed_hosts)
        url = urlsplit(settings.advertised_url or "")
        if url.hostname:
            named.append(url.netloc.lower().removesuffix({"http": ":80", "https": ":443"}[url.scheme]))
        hosts = {"localhost", settings.host.lower(), *(_host_of(each.encode()) or each for each in named)}
        return cls(
            frozenset(hosts),
            frozenset(each.encode() for each in named),
            addresses=exposed,
            all=exposed and not _split(settings.allowed_hosts),
            untyped_puts=settings.cdap_clients,
        )

    @cached_property
    def knows(self) -> Callable[[bytes], bool]:
        """Whether the value of a Host header names this service."""
        return lru_cache(_REMEMBERED)(self._knows)

    def _knows(self, authority: bytes) -> bool:
        host = _host_of(authority)
        if self.all or host in self.hosts:
            return True
        try:
            address = ipaddress.ip_address((host or "").strip("[]"))
        except ValueError:
            return False
        return self.addresses or address.is_loopback


def check(method: str, headers: Mapping[bytes, bytes], names: Names) -> None:
    """Judges a request by its method and headers, their names in lower case.

    Raises HostNotAllowed, ForeignOrigin, UnsupportedMediaType.
    """
    host = headers.get(b"host")
    if host is not None and not names.knows(host):
        raise HostNotAllowed(
            f"{_shown(host)} is no name of this service; if it should be, name it in --allowed-hosts (ONCELOG_ALLOWED_HOSTS)"
        )
    origin = headers.get(b"origin")
    if origin is not None:
        if not _is_own(origin, host, names):
            raise ForeignOrigin(f"a page of {_shown(origin)} asks for this, which is another origin; nothing was done")
    elif b"sec-fetch-site" in headers and not _from_own_page(method, headers):
        raise ForeignOrigin("a page of another origin asks for this; nothing was done")
    if method not in READING:
        _check_media(headers, untyped=names.untyped_puts and method == "PUT")


def _is_own(origin: bytes, host: bytes | None, names: Names) -> bool:
    found = _ORIGIN.fullmatch(origin.lower())
    return found is not None and (found[1] in names.origins or (host is not None and found[1] == host.lower()))


def _from_own_page(method: str, headers: Mapping[bytes, bytes]) -> bool:
    followed = (headers.get(b"sec-fetch-mode"), headers.get(b"sec-fetch-dest")) == (b"navigate", b"document")
    return headers[b"sec-fetch-site"] in _OWN or (followed and method in READING)


def _check_media(headers: Mapping[bytes, bytes], untyped: bool) -> None:
    """Whatever comes of the body: what a form sends may have none. ``untyped``: one without a type is let through."""
    coding = headers.get(b"content-encoding", b"identity")
    if coding.lower() not in (b"identity", *CODINGS):
        raise UnsupportedMediaType(f"Content-Encoding {_shown(coding)} is not read here; gzip is, once", codings=["gzip"])
    media = headers.get(b"content-type")
    if media is None:
        if not untyped and (headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in headers):
            raise UnsupportedMediaType("the request has a body and does not say what it is; give it a Content-Type")
    elif media.partition(b";")[0].strip().lower() in _UNASKED:
        raise UnsupportedMediaType(f"Content-Type {_shown(media)} is not read here, as it is what any page can send")


def _host_of(authority: bytes) -> str | None:
    """The host in ``host:port``, in lower case; None if that is none."""
    found = _AUTHORITY.fullmatch(authority)
    return None if found is None else found[1].decode("ascii").lower()


def _split(named: str | None) -> list[str]:
    return [each.strip().lower() for each in (named or "").split(",") if each.strip()]


def _shown(value: bytes) -> str:
    return ascii(value.decode("latin-1")[:200])
