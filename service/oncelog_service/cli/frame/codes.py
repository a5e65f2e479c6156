"""Exit codes. The table in docs/cli.md says the same, and a test holds both together; they stay as they are."""

from __future__ import annotations

from oncelog.errors import (
    CertificateRefused,
    ConnectionFailed,
    ConsumerFenced,
    HostNotAllowed,
    NotAllowed,
    NotFound,
    OncelogError,
    ProducerFenced,
    Unauthorized,
)

OK = 0
ERROR = 1
"""It did not work, for a reason that has no code of its own."""
USAGE = 2
"""The command line, the environment or the file of contexts cannot be understood."""
AWAY = 3
"""The service cannot be reached, or cannot do it now: later it may."""
NOT_FOUND = 4
REFUSED = 5
"""Who asks may not do this, or the two do not trust each other."""
CONFLICT = 6
"""What is there is not what was expected, or is in other hands."""
FOUND = 10
"""What was looked at is not sound: violations, damage, settings that are none. The looking itself went well."""
WARNING = 11
"""`oncelog doctor` found something, and nothing critical."""
CRITICAL = 12
BUG = 70
"""Of oncelog itself; of sysexits.h."""
INTERRUPTED = 130

_TRUST = (Unauthorized, NotAllowed, HostNotAllowed, CertificateRefused)
_FENCED = (ProducerFenced, ConsumerFenced)
_CONFLICTS = (409, 412, 422)
_LATER = (408, 429, 503, 507)


def code_of(error: OncelogError) -> int:
    """The exit code of what the service, or the SDK, raised."""
    if isinstance(error, _TRUST):
        return REFUSED
    if isinstance(error, NotFound):
        return NOT_FOUND
    if isinstance(error, ConnectionFailed) or error.status in _LATER:
        return AWAY
    if isinstance(error, _FENCED) or error.status in _CONFLICTS:
        return CONFLICT
    return ERROR
