"""Whom to trust and how to get there: a CA of one's own, a certificate for oneself, a proxy. By choice only.

Certificates are always checked; there is no way to have that left out.
"""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import certifi

from oncelog.http.credentials import Address, Secret

_log = logging.getLogger(__name__)

CA_VARIABLES = ("ONCELOG_CA", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR")
"""The first one that is set names the certificates, a file or a directory, that are trusted instead of the public ones."""

Verify = str | os.PathLike[str] | ssl.SSLContext | bool | None
Certificate = str | os.PathLike[str] | tuple[str | os.PathLike[str], str | os.PathLike[str]] | None


@dataclass(frozen=True)
class Trust:
    """Certificates and a proxy.

    All that a connection needs besides an address. No file is read before :attr:`context` is asked for.
    """

    ca: str | None = None
    """A file of certificates, or a directory as ``openssl rehash`` makes it; None: the public ones."""
    certificate: str | None = None
    """A file with the client's own certificate, and its key unless that is in ``key``."""
    key: str | None = field(default=None, repr=False)
    proxy: str | None = field(default=None, repr=False)
    """URL of a proxy that every request goes through; None: none, whatever the environment has."""
    given: ssl.SSLContext | None = None
    """A context that the caller made."""

    @classmethod
    def chosen(
        cls,
        verify: Verify = None,
        cert: Certificate = None,
        proxy: str | None = None,
        environment: Mapping[str, str] = os.environ,
    ) -> Trust:
        """Take what is given, else what the environment says: :data:`CA_VARIABLES`, ONCELOG_CERT, ONCELOG_KEY, ONCELOG_PROXY.

        Raises ValueError: certificates are not to be checked, or that is no proxy's URL.
        """
        if verify is False:
            raise ValueError("certificates are always checked; give verify= the file of the CA that signed the service's")
        given = verify if isinstance(verify, ssl.SSLContext) else None
        ca = None
        if isinstance(verify, str | os.PathLike):
            ca = os.fspath(verify)
        elif given is None:
            ca = next((environment[name] for name in CA_VARIABLES if environment.get(name)), None)
        certificate, key = cert if isinstance(cert, tuple) else (cert, None)
        if certificate is None:
            certificate, key = environment.get("ONCELOG_CERT") or None, environment.get("ONCELOG_KEY") or None
        return cls(
            ca,
            None if certificate is None else os.fspath(certificate),
            None if key is None else os.fspath(key),
            _checked_proxy(proxy or environment.get("ONCELOG_PROXY") or None),
            given,
        )

    @property
    def context(self) -> ssl.SSLContext:
        """For a connection under TLS that begins now. The files are read once, as all public certificates take 20 ms, and again
        when they have changed: certificates are renewed. New ones that are of no use leave the old ones. Raises ValueError: the
        first ones are.
        """
        seen = self._state()
        known: tuple[object, ssl.SSLContext] | None = self.__dict__.get("_known")
        if known is None or known[0] != seen:
            try:
                made = self._made()
            except ValueError as error:
                if known is None:
                    raise
                made = known[1]
                _log.warning("new files of certificates are of no use, so the old ones are used on: %s", error)
            known = self.__dict__["_known"] = (seen, made)  # frozen means the fields
        return known[1]

    def _state(self) -> object:
        """What differs once a file was written, or another one put in its place; of a context that the caller made: nothing."""
        if self.given is not None:
            return None
        return [stamp(each) for each in (self.ca, self.certificate, self.key) if each is not None]

    def _made(self) -> ssl.SSLContext:
        ca = certifi.where() if self.ca is None else self.ca
        file, directory = (None, ca) if os.path.isdir(ca) else (ca, None)
        try:
            context = self.given or ssl.create_default_context(cafile=file, capath=directory)
        except OSError as error:  # ssl.SSLError is one
            raise ValueError(f"the certificates to trust cannot be read from {ca!r}: {error}") from error
        if self.certificate is not None:
            try:
                context.load_cert_chain(self.certificate, self.key, password=_no_password)
            except OSError as error:
                raise ValueError(f"the client's certificate cannot be read from {self.certificate!r}: {error}") from error
        return context


def stamp(path: str) -> object:
    """What differs once a file was written, or another one put in its place."""
    try:
        found = os.stat(path)
    except OSError as error:
        return error.errno
    return found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev


def _no_password() -> str:
    """Refuse, instead of asking at the terminal, where nobody may sit."""
    raise ValueError("the key is encrypted; make a context of your own, give it the password, and pass it as verify=")


def _checked_proxy(url: str | None) -> Secret | None:
    if url is None:
        return None
    url = Secret(url)  # it may hold a password
    try:
        parts = Address(*urlsplit(url))
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        good = False
    if not good:
        raise ValueError("not the URL of a proxy; it looks like http://proxy.example.com:3128")
    return url
