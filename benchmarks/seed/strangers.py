"""Strangers at a port of SEED's server: streams that know no token, and connections that say nothing.

Their HTTP/2 is written by hand, so that what they cost is the server's time and not their own.
"""

import asyncio
import json
import sys
import time
from collections.abc import Sequence

from boonta.transport.messages import METHOD

EACH = 16  # streams of a connection
AGAIN = 1.0  # seconds before any of them comes again
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS, HEADERS, PING, GOAWAY, ACK, END_HEADERS = 4, 1, 6, 7, 1, 4


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """An HTTP/2 frame (RFC 9113, section 4.1)."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def call(stream: int) -> bytes:
    """The headers of a call without a hello, of names and values below 127 bytes (RFC 7541, section 6.2.2)."""
    fields = {
        ":method": "POST", ":scheme": "http", ":path": METHOD, ":authority": "localhost",
        "content-type": "application/grpc", "te": "trailers",
    }  # fmt: skip
    words = (bytes([len(word)]) + word.encode() for pair in fields.items() for word in pair)
    pairs = b"".join(b"\x00" + name + value for name, value in zip(words, words, strict=True))
    return frame(HEADERS, END_HEADERS, stream, pairs)


class Strangers:
    """So many streams and sockets at an address, until a time.

    Attributes:
        refused: streams that the server ended.
        closed: sockets that it closed.
    """

    def __init__(self, address: str, seconds: float) -> None:
        self.host, _, port = address.rpartition(":")
        self.port, self.end = int(port), time.monotonic() + seconds
        self.refused = self.closed = 0

    async def come(self, streams: int, sockets: int) -> None:
        """All of them, side by side."""
        count = -(-streams // EACH)
        await asyncio.gather(*(self._streams() for _ in range(count)), *(self._socket() for _ in range(sockets)))

    async def _streams(self) -> None:
        """A connection's streams, each of which comes again where it was ended."""
        while time.monotonic() < self.end:
            reader, writer = await asyncio.open_connection(self.host, self.port)
            writer.write(PREFACE + frame(SETTINGS, 0, 0, b""))
            heard, stream, ended = asyncio.create_task(self._hear(reader, writer)), 1, False
            while time.monotonic() < self.end and not ended:
                writer.write(b"".join(call(stream + 2 * i) for i in range(EACH)))
                stream += 2 * EACH
                await asyncio.sleep(AGAIN)
                ended = heard.done()
            heard.cancel()
            writer.close()

    async def _hear(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer what a connection must, and count what ends."""
        try:
            while True:
                head = await reader.readexactly(9)
                payload = await reader.readexactly(int.from_bytes(head[:3], "big"))
                kind, flags = head[3], head[4]
                if kind in (SETTINGS, PING) and not flags & ACK:
                    writer.write(frame(kind, ACK, 0, payload if kind == PING else b""))
                if kind == HEADERS and flags & 1:  # trailers: the end of a stream
                    self.refused += 1
                if kind == GOAWAY:
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            return

    async def _socket(self) -> None:
        """A connection that says nothing, and comes again where it was closed."""
        while time.monotonic() < self.end:
            begun = time.monotonic()
            try:
                reader, writer = await asyncio.open_connection(self.host, self.port)
                await asyncio.wait_for(reader.read(-1), max(self.end - time.monotonic(), 0.0))
                self.closed += 1
                writer.close()
            except (TimeoutError, ConnectionError):
                pass
            await asyncio.sleep(max(AGAIN - (time.monotonic() - begun), 0.0))


def main(argv: Sequence[str]) -> None:
    """HOST:PORT SECONDS STREAMS SOCKETS: what came of them, as JSON."""
    address, seconds, streams, sockets = argv
    strangers = Strangers(address, float(seconds))
    asyncio.run(strangers.come(int(streams), int(sockets)))
    told = {"refused": strangers.refused, "closed": strangers.closed, "processor_seconds": time.process_time()}
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
