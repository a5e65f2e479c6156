"""Certificates that tests make: a CA in a file, and what it signs, with any names and any time."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAY = timedelta(days=1)


class Issued(NamedTuple):
    """Files with a certificate and with its key."""

    certificate: str
    key: str

    @property
    def tls(self) -> dict[str, str]:
        """As settings of a service."""
        return {"tls_certificate": self.certificate, "tls_key": self.key}

    @property
    def pair(self) -> tuple[str, str]:
        """As ``cert`` of a client."""
        return self.certificate, self.key

    def put_in_place_of(self, other: Issued) -> None:
        """Write it into the files of another one, the certificate first."""
        for target, source in zip(other, self, strict=True):
            Path(target).write_bytes(Path(source).read_bytes())


class Authority:
    """A CA, in ``<name>.pem``."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        builder = _builder(self._name, self._name, self._key.public_key(), datetime.now(UTC) - DAY, datetime.now(UTC) + DAY)
        builder = builder.add_extension(x509.BasicConstraints(True, 0), True).add_extension(usage, True)
        builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), False)
        self.file = str(folder / f"{name}.pem")
        _write(self.file, builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    def issue(
        self,
        file: str,
        *,
        common_names: Sequence[str] = (),
        dns: Sequence[str] = (),
        uris: Sequence[str] = (),
        ips: Sequence[str] = (),
        ends: timedelta = DAY,
        server_only: bool = False,
    ) -> Issued:
        """Sign a certificate for a key of its own, and write both. ``ends``: from now; what is negative has expired."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, each) for each in common_names])
        builder = _builder(subject, self._name, key.public_key(), datetime.now(UTC) - 2 * DAY, datetime.now(UTC) + ends)
        names: list[x509.GeneralName] = [x509.DNSName(each) for each in dns]
        names += [x509.UniformResourceIdentifier(each) for each in uris]
        names += [x509.IPAddress(ip_address(each)) for each in ips]
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), not common_names)
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, *([] if server_only else [ExtendedKeyUsageOID.CLIENT_AUTH])]
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), False)
        builder = builder.add_extension(x509.BasicConstraints(False, None), True)
        ours = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = builder.add_extension(ours, False)
        found = Issued(str(self.folder / f"{file}.pem"), str(self.folder / f"{file}.key"))
        _write(found.certificate, builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        kind = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        _write(found.key, key.private_bytes(serialization.Encoding.PEM, *kind))
        return found

    def service(self, file: str = "service", **options: object) -> Issued:
        """A certificate for 127.0.0.1 and localhost."""
        return self.issue(file, ips=["127.0.0.1"], dns=["localhost"], **options)  # type: ignore[arg-type]

    def trusting(self) -> ssl.SSLContext:
        """What a client that trusts this CA alone has."""
        return ssl.create_default_context(cafile=self.file)


def encrypted(key: str, file: str) -> str:
    """The same key under a password, in another file."""
    loaded = serialization.load_pem_private_key(Path(key).read_bytes(), None)
    kind = serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"x")
    _write(file, loaded.private_bytes(serialization.Encoding.PEM, *kind))  # type: ignore[union-attr]
    return file


def _builder(subject: x509.Name, issuer: x509.Name, key: object, begins: datetime, ends: datetime) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)  # type: ignore[arg-type]
    return builder.serial_number(x509.random_serial_number()).not_valid_before(begins).not_valid_after(ends)


def _write(file: str, content: bytes) -> None:
    Path(file).write_bytes(content)
