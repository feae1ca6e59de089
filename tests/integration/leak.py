"""A wire to nats-server on which things get lost."""

import asyncio


class Leak:
    """A wire to the server that can be told to swallow what the server says, and to break."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []
        self.swallowed = 0
        self.swallowing = False

    async def open(self) -> str:
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        return f"nats://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers = [writer, to_server]
        await asyncio.gather(self._pass(reader, to_server, False), self._pass(from_server, writer, True))

    async def _pass(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, leaks: bool) -> None:
        while data := await source.read(65_536):
            if leaks and self.swallowing:
                self.swallowed += len(data)
            else:
                sink.write(data)
        sink.close()

    def cut(self) -> None:
        self.swallowing = False
        for writer in self._writers:
            writer.close()

    async def close(self) -> None:
        assert self._server is not None
        self.cut()
        self._server.close()
