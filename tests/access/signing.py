"""An issuer of tokens with keys of its own, and the ways in which a token can be wrong."""

from __future__ import annotations

import base64
import json
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

ISSUER, AUDIENCE = "https://login.example.org/realm", "oncelog"
_JWK: dict[str, Any] = {"RS": jwt.algorithms.RSAAlgorithm, "PS": jwt.algorithms.RSAAlgorithm, "ES": jwt.algorithms.ECAlgorithm}


def new_key(algorithm: str = "ES256", bits: int = 2048) -> Any:
    if algorithm == "EdDSA":
        return ed25519.Ed25519PrivateKey.generate()
    if algorithm.startswith("ES"):
        return ec.generate_private_key({"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}[algorithm])
    return rsa.generate_private_key(public_exponent=65537, key_size=bits)


def jwk(key: Any, kid: str | None, algorithm: str = "ES256", **fields: Any) -> dict[str, Any]:
    """The public half, as a set of keys has it."""
    kind: Any = _JWK.get(algorithm[:2], jwt.algorithms.OKPAlgorithm)
    found: dict[str, Any] = json.loads(kind.to_jwk(key.public_key()))
    return {**found, **({} if kid is None else {"kid": kid}), **fields}


def key_set(*keys: dict[str, Any]) -> bytes:
    return json.dumps({"keys": keys}).encode()


def pem(key: Any) -> bytes:
    """The public half, as an attacker takes it for a password."""
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def part(value: object) -> str:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def signed(key: Any, header: object, payload: object, algorithm: str = "ES256") -> str:
    """A token of parts that no library would make, properly signed."""
    text = f"{part(header)}.{part(payload)}"
    signer = jwt.algorithms.get_default_algorithms()[algorithm]
    return f"{text}.{part(signer.sign(text.encode(), signer.prepare_key(key)))}"
