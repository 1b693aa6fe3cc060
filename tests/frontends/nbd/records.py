# SPDX-License-Identifier: Apache-2.0
"""A client's TLS as bytes, which a test may cut, change and keep back on their way."""

import asyncio
import contextlib
import ssl
from struct import pack

from imageio_daemon.nbdproto.constants import OptionType
from imageio_daemon.nbdproto.option_payloads import OptionHeader

TIMEOUT = 20.0


class Records:
    """One connection that has said STARTTLS: what a client wants to say becomes records, and the other way round."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, trust: ssl.SSLContext) -> None:
        self.reader = reader
        self.writer = writer
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        #: The server has said farewell.
        self.parted = False
        #: What it complained of at its end.
        self.alert: str | None = None
        self._said = bytearray()
        self._tls = trust.wrap_bio(self._incoming, self._outgoing, server_hostname="localhost")

    @classmethod
    async def connect(cls, address: str, trust: ssl.SSLContext) -> "Records":
        """Connect, and shake hands."""
        reader, writer = await asyncio.open_unix_connection(address)
        async with asyncio.timeout(TIMEOUT):
            await reader.readexactly(18)
            writer.write(pack(">I", 3) + OptionHeader(OptionType.STARTTLS, 0).pack())
            await reader.readexactly(20)
            records = cls(reader, writer, trust)
            await records._shake_hands()
        return records

    async def _shake_hands(self) -> None:
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self.writer.write(self._outgoing.read())
                await self.receive()
            else:
                self.writer.write(self._outgoing.read())
                return

    def encrypt(self, data: bytes) -> bytes:
        """Return the records that say this."""
        self._tls.write(data)
        return self._outgoing.read()

    def farewell(self) -> bytes:
        """Return the record that says that nothing more comes."""
        with contextlib.suppress(ssl.SSLWantReadError):
            self._tls.unwrap()
        return self._outgoing.read()

    async def receive(self) -> bool:
        """Take bytes of the server. False: it has ended the connection, not only TLS."""
        async with asyncio.timeout(TIMEOUT):
            try:
                data = await self.reader.read(1 << 20)
            except ConnectionError:
                return False
        self._incoming.write(data)
        if self._tls.version() is not None:
            self._decrypt()
        return bool(data)

    def _decrypt(self) -> None:
        while not self.parted and self.alert is None:
            try:
                data = self._tls.read(1 << 20)
            except ssl.SSLWantReadError:
                break
            except ssl.SSLZeroReturnError:
                data = b""
            except ssl.SSLError as e:
                self.alert = e.reason
                break
            self.parted = not data
            self._said += data

    async def read(self, count: int) -> bytes:
        """Return so many bytes of what the server says."""
        while len(self._said) < count:
            assert await self.receive(), "the server has ended the connection"
        said = bytes(self._said[:count])
        del self._said[:count]
        return said

    async def close(self) -> None:
        """Close, without a farewell."""
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()

    async def drain(self) -> bytes:
        """Return all that the server says until it ends the connection."""
        while await self.receive():
            pass
        return bytes(self._said)
