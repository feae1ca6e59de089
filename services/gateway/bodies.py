"""Request bodies: read within limits of size, time and memory."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from services.gateway.config import GatewayConfig
from shared.contracts.outcomes import Problem, Reason


class Bodies:
    """Use as: `async with bodies.room(request) as refused`, and `await bodies.read(request)` where nothing was refused."""

    def __init__(self, config: GatewayConfig) -> None:
        self._config = config
        self._reserved = 0  # bytes

    @asynccontextmanager
    async def room(self, request: web.Request) -> AsyncIterator[Problem | None]:
        """Reserves memory for the body; the problem if there is none, or if the body says that it is too long."""
        limit, length = self._config.body_bytes_max, request.content_length
        if length is not None and length > limit:
            yield _too_large(limit)
            return
        size = limit if length is None or "Content-Encoding" in request.headers else length
        if self._reserved + size > self._config.bodies_bytes_max:
            yield Problem(reason=Reason.NO_CAPACITY, message="too many bytes are being submitted at once; try again")
            return
        self._reserved += size
        try:
            yield None
        finally:
            self._reserved -= size

    async def read(self, request: web.Request) -> bytes | Problem:
        """All of it, or why not."""
        limit, body = self._config.body_bytes_max, bytearray()
        try:
            async with asyncio.timeout(self._config.body_timeout_ms / 1e3):
                async for piece in request.content.iter_any():  # request.read() would keep the body as long as the request
                    body += piece
                    if len(body) > limit:
                        return _too_large(limit)
        except TimeoutError:
            return Problem(reason=Reason.INVALID, message=f"the body did not arrive within {self._config.body_timeout_ms} ms")
        except (web.RequestPayloadError, HttpProcessingError) as error:
            return Problem(reason=Reason.INVALID, message=f"the body cannot be read: {error}")
        return bytes(body)


def _too_large(limit: int) -> Problem:
    return Problem(reason=Reason.TOO_LARGE, message=f"the body is longer than {limit} bytes")
