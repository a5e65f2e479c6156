"""What a service shows under TLS, whom it asks for a certificate, and what a client's certificate says its name is.

The files are read again when they change, and when the process is told to look (SIGHUP). All of them are read into a context that
nobody uses yet: a handshake meets the old files or the new ones, never some of each, and files that do not go together change
nothing. Sessions are as old as the context at most, and no tickets are given out for them: who resumes one (TLS 1.2) has shown a
certificate that the CA of this moment has signed, and whether it has expired meanwhile is asked again.
"""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from oncelog.http.trust import stamp
from oncelog_service.background import Background
from oncelog_service.config import Settings

_log = logging.getLogger(__name__)

_PEM = re.compile("-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
LOOK_SECONDS = 1.0
"""How often the files are looked at: three questions to the file system."""
_NAME = re.compile(r"[A-Za-z0-9_.@=:/+-]{1,200}", re.ASCII)
"""What grants can be written for."""


class BadCertificate(ValueError):
    """Its files cannot be read, or do not go together."""


class Context(NamedTuple):
    """What was read of the files."""

    context: ssl.SSLContext
    ends_ms: int | None


class Certificates:
    """The files of a service, as they were when they last went together."""

    def __init__(self, certificate: str, key: str | None, client_ca: str | None) -> None:
        """Reads them: a certificate and those between it and its CA, its key unless that is in the same file, and the CA of
        clients, if they are to be asked for a certificate. Raises BadCertificate."""
        self._files = certificate, key, client_ca
        self._seen = self._state()
        self.context = _context(*self._files)
        """For connections that begin now."""
        self.ends_ms = ends_ms_of(certificate)
        """When the first of those that are shown expires, ms since 1970; None: it cannot be read."""

    @classmethod
    def of(cls, settings: Settings) -> Certificates | None:
        """Those that the settings name; None: there are none, and HTTP goes as it is. Raises BadCertificate."""
        if settings.tls_certificate is None:
            return None
        return cls(settings.tls_certificate, settings.tls_key, settings.tls_client_ca)

    async def watch(self, background: Background) -> None:
        """Reads them again whenever they change, until cancelled."""
        await background.keep("looking at the certificate's files", self._watch)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if self._state() == self._seen:
                continue
            try:
                self.use(await self.read())
            except BadCertificate as error:
                _log.error("the certificate's files have changed and are of no use, so the old ones are used on: %s", error)

    async def read(self) -> Context:
        """Reads the files, changed or not, and uses nothing of them yet. Raises BadCertificate."""
        # Looked at before it is read: what changes meanwhile differs from what was seen, and is read the next time.
        self._seen = self._state()
        context = await asyncio.to_thread(_context, *self._files)
        return Context(context, await asyncio.to_thread(ends_ms_of, self._files[0]))

    def use(self, read: Context) -> None:
        """Has connections that begin from now on use it."""
        self.context, self.ends_ms = read
        _log.info("the certificate was read anew from %s", self._files[0])

    def _state(self) -> tuple[object, ...]:
        """What differs once a file was written, or another one put in its place."""
        return tuple(stamp(each) for each in self._files if each is not None)


def _context(certificate: str, key: str | None, client_ca: str | None) -> ssl.SSLContext:
    """Raises BadCertificate."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET
    context.num_tickets = 0
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except OSError as error:  # ssl.SSLError is one
        files = certificate if key is None else f"{certificate} and {key}"
        raise BadCertificate(f"the certificate and its key cannot be read from {files}: {_reason(error)}") from error
    if client_ca is not None:
        try:
            context.load_verify_locations(client_ca)
        except OSError as error:
            raise BadCertificate(f"the CA of clients cannot be read from {client_ca}: {_reason(error)}") from error
        # A token may do instead, so who has no certificate is let in as far as that; one that is shown must be good.
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        mismatch = error.reason in ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH")
        return "the key is that of another certificate" if mismatch else f"what is there is not in PEM ({error.reason or error})"
    return error.strerror or str(error)


def _no_password() -> str:
    """Refuses, instead of asking at the terminal, where nobody may sit."""
    raise BadCertificate("the key is encrypted; a service has nobody to ask for its password: give it one that is not")


def name_in(certificate: Mapping[str, Any]) -> str:
    """The name of who showed a certificate that was verified (as :meth:`ssl.SSLObject.getpeercert` has it): the URI in it, else
    the DNS name, else the common name of its subject.

    Raises ValueError: it has several of them, or none. Which one is meant is not guessed, as each has grants of
    its own.
    """
    names = [(kind, value) for kind, value in certificate.get("subjectAltName", ()) if isinstance(value, str)]
    for kind, called in (("URI", "URIs"), ("DNS", "DNS names")):
        found = sorted({value.lower() if kind == "DNS" else value for each, value in names if each == kind})
        if found:
            return _only(found, called)
    subject = (pair for relative in certificate.get("subject", ()) for pair in relative)
    found = [value for key, value in subject if key == "commonName"]
    if not found:
        raise ValueError("it has no URI, no DNS name and no common name")
    return _only(found, "common names")


def ends_ms_of(path: str) -> int | None:
    """When the first of the certificates in a file (PEM) expires, in ms since 1970; None: that cannot be read."""
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            found = _PEM.findall(file.read())
        return min((not_after(ssl.PEM_cert_to_DER_cert(each)) for each in found), default=None)
    except (OSError, ValueError, IndexError):
        return None


def not_after(der: bytes) -> int:
    """When a certificate expires, in ms since 1970. Raises ValueError, IndexError: it is none.

    Python's ssl tells that of the other side's certificate only. RFC 5280, 4.1: TBSCertificate is version, serial number,
    signature, issuer, validity, …, and validity is notBefore, notAfter.
    """
    certificate = _members(der)[0]
    fields = _members(_members(certificate[1])[0][1])
    fields = fields[1:] if fields[0][0] == 0xA0 else fields  # a certificate of version 1 does not say so
    kind, time_of_end = _members(fields[3][1])[1]
    text = time_of_end.decode("ascii")
    if kind == 0x17:  # UTCTime: two digits of the year, from 1950 on
        text = ("19" if text >= "50" else "20") + text
    return round(datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp() * 1000)


def _members(der: bytes) -> list[tuple[int, bytes]]:
    """The values in DER that follow on each other: the tag and the contents of each."""
    found, at = [], 0
    while at < len(der):
        tag, length, at = der[at], der[at + 1], at + 2
        if length & 0x80:
            digits = length & 0x7F
            length, at = int.from_bytes(der[at : at + digits], "big"), at + digits
        found.append((tag, der[at : at + length]))
        at += length
    return found


def end_of(certificate: Mapping[str, Any]) -> int:
    """When it expires, in seconds since 1970."""
    return ssl.cert_time_to_seconds(certificate["notAfter"])


def _only(found: list[str], called: str) -> str:
    if len(found) > 1:
        raise ValueError(f"it has {len(found)} {called}")
    name = found[0]
    if not _NAME.fullmatch(name):
        raise ValueError("the name in it is not 1 to 200 letters, digits and _.@=:/+-")
    return name
