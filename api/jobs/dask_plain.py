"""Connections to a scheduler over which nothing is unpickled: dask gets plain data of what is said there.

A pickle runs code when it is opened, and dask opens pickles in results, errors, events and types of tasks. So a service
reads a scheduler's messages itself: names, numbers, text, lists and mappings pass, and each bytes object becomes None
before any code of dask sees it. What a service sends is serialized as dask does.
"""

from __future__ import annotations

import struct
from ssl import SSLError
from typing import Any

import msgpack
from distributed.comm import tcp
from distributed.comm.core import CommClosedError
from distributed.comm.registry import backends
from tornado.iostream import StreamClosedError

PREFIX = "plain-"
"""Before `tcp://` or `tls://`: dask reads such an address with the classes below."""
LARGEST_MESSAGE = 1 << 28
"""Bytes; the largest that is read is the list of workers, some kilobytes each."""
_UNREAD = frozenset({"__Serialized__", "__Pickled__"})
"""Keys of what stands for a frame that is dropped."""
_WORD = struct.Struct("<Q")


def plain(value: Any) -> Any:
    """Return a decoded message without its bytes, of types that dask opens no pickle in."""
    if isinstance(value, dict):
        if not _UNREAD.isdisjoint(value):
            return None
        return {plain(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return tuple(plain(entry) for entry in value)
    return value if value is None or isinstance(value, (bool, int, float, str)) else None


class _Reading:
    """How a message is read: a count of frames, their lengths, and the frames, the first of which is msgpack."""

    stream: Any
    abort: Any  # of dask's class
    _closed: bool

    async def read(self, deserializers: object = None) -> Any:
        """Return the next message as plain data; the frames after the first, which hold pickles, are dropped."""
        if self.stream is None:
            raise CommClosedError
        try:
            data = await self._bytes(await self._length())
            lengths = [length for (length,) in _WORD.iter_unpack(data[_WORD.size : _WORD.size * (1 + _frames(data))])]
            start = _WORD.size * (1 + len(lengths))
            data += await self._bytes(start + sum(lengths) - len(data))
        except (StreamClosedError, SSLError) as error:
            self.stream, self._closed = None, True
            raise CommClosedError(f"the scheduler has closed the connection: {error}") from error
        except BaseException:
            self.abort()
            raise
        frame = data[start : start + lengths[0]] if lengths else b""
        return plain(msgpack.unpackb(frame, use_list=False, strict_map_key=False, raw=False))

    async def _length(self) -> int:
        (length,) = _WORD.unpack(await self.stream.read_bytes(_WORD.size))
        return int(length)

    async def _bytes(self, count: int) -> bytes:
        if not 0 <= count <= LARGEST_MESSAGE:
            raise ValueError(f"a message of {count} bytes, and the limit is {LARGEST_MESSAGE}")
        return bytes(await self.stream.read_bytes(count)) if count else b""


def _frames(data: bytes) -> int:
    (count,) = _WORD.unpack_from(data)
    if _WORD.size * (1 + count) > len(data):
        raise ValueError(f"{count} frames in {len(data)} bytes")
    return int(count)


class _PlainTcp(_Reading, tcp.TCP):
    pass


class _PlainTls(_Reading, tcp.TLS):
    pass


class _TcpConnector(tcp.TCPConnector):
    comm_class = _PlainTcp


class _TlsConnector(tcp.TLSConnector):
    comm_class = _PlainTls


class _TcpBackend(tcp.TCPBackend):
    _connector_class = _TcpConnector


class _TlsBackend(tcp.TLSBackend):
    _connector_class = _TlsConnector


backends[f"{PREFIX}tcp"] = _TcpBackend()
backends[f"{PREFIX}tls"] = _TlsBackend()
