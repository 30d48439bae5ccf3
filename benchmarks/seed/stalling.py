"""A proxy whose connections go silent without being closed: half-open, as after a cable is pulled."""

import asyncio
import threading
import time
from contextlib import suppress


class Stalling:
    """A proxy in a thread, whose connections go silent without being closed."""

    def __init__(self, path: str, to: str) -> None:
        self._path, self._to, self._stalled, self._open = path, to, 0.0, 0.0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._thread.start()

    def stall(self) -> None:
        """From now on nothing goes through connections that are there; new ones work."""
        self._stalled = time.monotonic()

    def close(self) -> None:
        """Close all connections."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10.0)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:  # whose end cancels what is open
            runner.run(asyncio.start_unix_server(self._connected, self._path))
            self._loop.run_forever()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        since = time.monotonic()
        try:
            there, back = await asyncio.open_unix_connection(self._to)
        except OSError:  # the server is not up yet
            return writer.close()
        with suppress(asyncio.CancelledError):  # at the end
            await asyncio.gather(self._pass(reader, back, since), self._pass(there, writer, since))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, since: float) -> None:
        while data := await reader.read(1 << 16):
            while since < self._stalled:
                await asyncio.sleep(3600.0)
            writer.write(data)
            await writer.drain()
        writer.close()
