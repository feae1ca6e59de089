"""Asks who may know of a planned loss. One question, one answer; `watch.py` repeats them."""

import asyncio
import os
import stat
from collections.abc import Mapping
from typing import Protocol

import aiohttp

from services.worker.notices import aws, azure, file, gcp
from services.worker.notices.config import NoticesConfig
from services.worker.notices.notice import Notice, Unreadable
from shared.runtime.clock import now_ns

BODY_BYTES_MAX = 256 * 1024  # of an answer; Azure lists the events of a whole group
WAIT_S = 30  # that GCP may hold back an answer while nothing changes


class Source(Protocol):
    """`name` is for people; `timeout_s` is for the next answer."""

    name: str
    timeout_s: float

    async def ask(self) -> Notice | None:
        """What is known now. Raises Unreadable, aiohttp.ClientError, TimeoutError or OSError."""


class Metadata:
    """A metadata service at an address. Answers are small, come from the service itself, and are what they are: no redirects, no
    compression, no cookies."""

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self._http = http
        self._url = url.rstrip("/")

    async def ask(self, path: str, headers: Mapping[str, str], method: str = "GET") -> tuple[int, bytes, str]:
        """Status, content and ETag."""
        async with self._http.request(method, f"{self._url}{path}", headers=headers, allow_redirects=False) as response:
            content = b""
            async for piece in response.content.iter_any():
                content += piece
                if len(content) > BODY_BYTES_MAX:
                    raise Unreadable(f"{path} answers more than {BODY_BYTES_MAX} bytes")
            return response.status, content, response.headers.get("ETag", "")


class Ec2:
    """Spot interruptions, and rebalance recommendations if wanted."""

    name = "EC2"

    def __init__(self, metadata: Metadata, config: NoticesConfig) -> None:
        self.timeout_s = config.timeout_ms / 1e3
        self._metadata = metadata
        self._readers = [(aws.ACTION_PATH, aws.interruption)]
        if config.aws_rebalance:
            self._readers.append((aws.REBALANCE_PATH, aws.rebalance))
        self._token = ""
        self._renew_at = 0.0

    async def ask(self) -> Notice | None:
        for path, reader in self._readers:
            status, content, _ = await self._metadata.ask(path, {aws.TOKEN_HEADER: await self._valid_token()})
            if status == 200:
                return reader(content, now_ns())
            if status != 404:
                self._token = ""  # 401: it is over
                raise _refused(path, status, "200 or 404")
        return None

    async def _valid_token(self) -> str:
        loop = asyncio.get_running_loop()
        if not self._token or loop.time() > self._renew_at:
            headers = {aws.TOKEN_TTL_HEADER: str(aws.TOKEN_TTL_S)}
            status, content, _ = await self._metadata.ask(aws.TOKEN_PATH, headers, method="PUT")
            if status != 200:
                raise _refused(aws.TOKEN_PATH, status, "200")
            self._token, self._renew_at = aws.token(content), loop.time() + aws.TOKEN_TTL_S / 2
        return self._token


class GoogleCloud:
    """One value of GCP's, waited for while it does not change."""

    def __init__(self, metadata: Metadata, config: NoticesConfig, path: str) -> None:
        self.name = f"GCP {path.rpartition('/')[2]}"
        self._metadata = metadata
        self._path = path
        self._etag = ""
        self._value = b""
        self._since_ns = 0
        self._maintenance_s = config.gcp_maintenance_s
        self._quick_s = self.timeout_s = config.timeout_ms / 1e3

    async def ask(self) -> Notice | None:
        etag, self._etag = self._etag, ""  # after a failure, the next question is not to wait
        query = f"?wait_for_change=true&timeout_sec={WAIT_S}&last_etag={etag}" if etag else ""
        try:
            status, content, new = await self._metadata.ask(self._path + query, gcp.HEADERS)
        finally:
            self.timeout_s = self._quick_s
        if status != 200:
            raise _refused(self._path, status, "200")
        if content != self._value:
            self._value, self._since_ns = content, now_ns()
        notice = self._read(content)
        if notice is None and new.isalnum() and new.isascii():
            self._etag, self.timeout_s = new, self._quick_s + WAIT_S
        return notice

    def _read(self, content: bytes) -> Notice | None:
        if self._path == gcp.PREEMPTED_PATH:
            return gcp.preempted(content, self._since_ns)
        return gcp.maintenance(content, self._since_ns, self._maintenance_s)


class Azure:
    """Scheduled events that name this machine."""

    name = "Azure"

    def __init__(self, metadata: Metadata, config: NoticesConfig) -> None:
        self.timeout_s = max(azure.FIRST_ANSWER_S, config.timeout_ms / 1e3)
        self._metadata = metadata
        self._config = config

    async def ask(self) -> Notice | None:
        status, content, _ = await self._metadata.ask(azure.EVENTS_PATH, azure.HEADERS)
        if status != 200:
            raise _refused(azure.EVENTS_PATH, status, "200")
        self.timeout_s = self._config.timeout_ms / 1e3
        return azure.losses(content, self._config.azure_resource, now_ns())


class NoticeFile:
    """A file that appears."""

    def __init__(self, config: NoticesConfig) -> None:
        self.name = config.file
        self.timeout_s = config.timeout_ms / 1e3
        self._config = config

    async def ask(self) -> Notice | None:
        found = await asyncio.to_thread(_read, self._config.file)
        if found is None:
            return None
        content, written_ns = found
        return file.announced(content, min(written_ns, now_ns()), self._config.file_grace_s)


def _read(path: str) -> tuple[bytes, int] | None:
    """Content and time of writing; None where no file is."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # without O_NONBLOCK, a pipe would hold us up for ever
    except FileNotFoundError:
        return None
    try:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            raise Unreadable(f"{path} is no file; put a file there to tell that this machine will be gone")
        content = os.read(descriptor, file.CONTENT_BYTES_MAX + 1)
    finally:
        os.close(descriptor)
    if len(content) > file.CONTENT_BYTES_MAX:
        raise Unreadable(f"{path} has more than {file.CONTENT_BYTES_MAX} bytes")
    return content, about.st_mtime_ns


def _refused(path: str, status: int, right: str) -> Unreadable:
    return Unreadable(f"{path} answers with status {status}; it should be {right}")


def sources(config: NoticesConfig, http: aiohttp.ClientSession) -> list[Source]:
    """Those that are configured."""
    chosen: list[Source] = []
    if config.aws_url:
        chosen.append(Ec2(Metadata(http, config.aws_url), config))
    if config.gcp_url:
        metadata = Metadata(http, config.gcp_url)
        chosen += [GoogleCloud(metadata, config, path) for path in (gcp.PREEMPTED_PATH, gcp.MAINTENANCE_PATH)]
    if config.azure_url:
        chosen.append(Azure(Metadata(http, config.azure_url), config))
    if config.file:
        chosen.append(NoticeFile(config))
    return chosen
