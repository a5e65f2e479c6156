"""gzip as a content coding: bodies that come packed are unpacked, and answers are packed for whoever asks for it.

The invariants:

* A packed body says in its last four bytes how large it is. So it is refused before it is unpacked, or unpacks to just that and
  not to a byte more: what it takes can be counted before it takes it.
* It is unpacked on the event loop only where that takes a millisecond at most, whatever is in it. Else a thread does so, of
  which all share one, slice by slice: whoever sends much waits for those who send less, and has one processor at most. zlib lets
  go of the interpreter meanwhile.
* What is refused is not held by the error that says so: that one stays as long as its connection is silent.
* An answer waits for nobody to be packed: while a large one is, the others go out as they are. It is until the thread has done
  so, also where its client has gone.
* The threads are those of this alone: where a store hangs, and all that read it wait, who asks what is wrong is answered.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import Generator, Mapping
from concurrent.futures import Executor

from oncelog.errors import InvalidRequest
from oncelog_service.rest.answer import Answer

CODINGS = (b"gzip", b"x-gzip")
"""The names of the one coding that is read; the second is an old one of the first (RFC 9110, 8.4.1.3)."""

_GZIP = 31
"""Tells zlib to take its header and trailer, and the largest window."""
_LEAST_PACKED = 18
"""Bytes of the header and the trailer alone."""
_AT_ONCE_PACKED = 8 * 2**10
"""Tables of codes for no data at all are the dearest that can be packed: 0.13 µs a byte."""
_AT_ONCE_BYTES = 128 * 2**10
"""Half a millisecond."""
_SLICE_PACKED = 256 * 2**10
_SLICE_BYTES = 2**20

_LEVEL = 1
"""On a processor that packs 160 MB/s of Avro and 340 MB/s of JSON so, to a sixth and a fifteenth; level 6 takes three times as
long for a tenth less."""
_LEAST_BYTES = 1_024
"""An answer below fits into one packet of a network as it is."""
_PACKED_AT_ONCE = 16 * 2**10
"""0.3 ms where it hardly gets smaller."""
_TRIED_BYTES = 4_096
"""So much of an answer tells whether it gets smaller: of one that does not it costs 0.1 ms, as payloads that are packed do."""
_LONGEST_ACCEPT = 1_024
"""Bytes of an Accept-Encoding that are read; those of a browser are 30, and of 64 KiB each comma costs a microsecond."""
_QUALITY = re.compile(r"q=(0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?)", re.IGNORECASE)


def is_packed(headers: Mapping[bytes, bytes]) -> bool:
    """Tells whether a body with these headers is packed."""
    return headers.get(b"content-encoding", b"").lower() in CODINGS


def unpacked_size(packed: bytes, limit: int) -> int:
    """Bytes that a body says it has unpacked; an empty one has none. Raises InvalidRequest: those are more than ``limit``."""
    if not packed:
        return 0
    if len(packed) < _LEAST_PACKED:
        raise InvalidRequest("the body is cut off: it is shorter than anything that gzip packs")
    size = int.from_bytes(packed[-4:], "little")
    if size > limit:
        raise InvalidRequest(f"unpacked, the body is larger than {limit} bytes, or something follows what is packed")
    return size


def unpacking(packed: bytes, size: int) -> Generator[None, None, bytes]:
    """Unpacks a slice at a time what :func:`unpacked_size` has found to have this size. Raises InvalidRequest."""
    if not packed:
        return b""
    unpacker, parts, left, at = zlib.decompressobj(_GZIP), list[bytes](), size + 1, 0
    try:
        while not unpacker.eof and (unpacker.unconsumed_tail or at < len(packed)):
            rest = unpacker.unconsumed_tail
            if not rest:
                rest = packed[at : at + _SLICE_PACKED]
                at += len(rest)
            parts.append(unpacker.decompress(rest, min(left, _SLICE_BYTES)))
            left -= len(parts[-1])
            if not left:
                raise InvalidRequest(f"unpacked, the body is larger than the {size} bytes that it says it has")
            yield
    except zlib.error as error:
        raise InvalidRequest(f"the body is not what gzip packs: {error}") from error.with_traceback(None)  # it holds all of it
    if not unpacker.eof:
        raise InvalidRequest("the body is cut off: the end of what is packed is missing")
    if unpacker.unused_data or at < len(packed):
        raise InvalidRequest("something follows what is packed in the body")
    return b"".join(parts)


def unpack(packed: bytes, limit: int) -> bytes:
    """Returns what gzip has packed, at most ``limit`` bytes. Raises InvalidRequest: it is more, cut off, damaged, or goes on."""
    slices = unpacking(packed, unpacked_size(packed, limit))
    while True:
        try:
            next(slices)
        except StopIteration as end:
            whole: bytes = end.value
            return whole


def is_unpacked_at_once(packed: bytes, size: int) -> bool:
    """Tells whether that takes the event loop a millisecond at most."""
    return len(packed) <= _AT_ONCE_PACKED and size <= _AT_ONCE_BYTES


async def unpacked_on(thread: Executor | None, packed: bytes, size: int) -> bytes:
    """Returns what :func:`unpacked_size` has found to have this size. All who use a thread have a slice each, in turn.

    Raises InvalidRequest.
    """
    slices, loop = unpacking(packed, size), asyncio.get_running_loop()
    while (found := await loop.run_in_executor(thread, _next, slices)) is None:
        pass
    return found


def _next(slices: Generator[None, None, bytes]) -> bytes | None:
    """Returns what the last slice has ended."""
    try:
        return next(slices)
    except StopIteration as end:
        whole: bytes = end.value
        return whole


def is_wanted(accept: str) -> bool:
    """Tells whether who says this (Accept-Encoding) would have an answer packed rather than as it is."""
    if len(accept) > _LONGEST_ACCEPT:
        return False
    said: dict[str, float] = {}
    for each in accept.lower().split(","):
        coding, _, quality = (part.strip() for part in each.partition(";"))
        found = _QUALITY.fullmatch(quality)
        said[coding] = float(found[1]) if found else 0.0 if quality else 1.0
    others = said.get("*", 0.0)
    packed = max(said.get("gzip", others), said.get("x-gzip", 0.0))
    return packed > 0 and packed >= said.get("identity", 0.0)


def pack(body: bytes) -> bytes | None:
    """Returns it packed; None where it hardly gets smaller, as the beginning of it says."""
    begun = body[:_TRIED_BYTES]
    if len(zlib.compress(begun, _LEVEL)) > len(begun) * 3 // 4:
        return None
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
    return packer.compress(body) + packer.flush()


class Packer:
    """Packs answers, on a thread those that are large, one at a time: it is memory that no bound of the connections sees."""

    def __init__(self, thread: Executor | None = None) -> None:
        """``thread``: one; None: the event loop's own."""
        self._thread = thread
        self._is_busy = False

    async def packed(self, answer: Answer, accept: str) -> Answer:
        """Returns the answer for who says this (Accept-Encoding): packed where that is wanted and pays."""
        body = answer.body
        if not isinstance(body, bytes) or (len(body) < _LEAST_BYTES and answer.status != 304):
            return answer
        packed = await self._pack(body) if body and is_wanted(accept) else None
        headers = {**answer.headers, "vary": "accept-encoding"}
        if packed is None:
            return answer._replace(headers=headers)
        return answer._replace(body=packed, headers={**headers, "content-encoding": "gzip"})

    async def _pack(self, body: bytes) -> bytes | None:
        if len(body) <= _PACKED_AT_ONCE:
            return pack(body)
        if self._is_busy:
            return None
        work = asyncio.get_running_loop().run_in_executor(self._thread, pack, body)
        self._is_busy = True
        work.add_done_callback(self._leave)
        await asyncio.wait([work])
        return work.result()

    def _leave(self, _: object) -> None:
        self._is_busy = False
