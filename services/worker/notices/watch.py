"""Watches for notices of a planned loss: each source is asked again and again, ever more slowly while it fails."""

import asyncio
import logging

import aiohttp

from services.worker.notices.config import NoticesConfig
from services.worker.notices.notice import SECOND_NS, Notice, Unreadable
from services.worker.notices.sources import Source, sources
from shared.runtime.clock import now_ns

log = logging.getLogger(__name__)

STALE_S = 600  # a machine that is still there so long after its time was spared, or the notice was left over from an earlier life
CONNECT_TIMEOUT_S = 2.0


async def watch(config: NoticesConfig) -> Notice:
    """The first notice of a loss that is near (`ahead_s`); of several at once, the earliest loss. Waits for ever where nothing is
    configured. Sources that fail or answer nonsense are told in the log once per change, and are asked again."""
    # No proxies from the environment: the services are on this machine's own link.
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False) as http:
        chosen = sources(config, http)
        if not chosen:
            await asyncio.Event().wait()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_follow(source, config)) for source in chosen]
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
        return min((task.result() for task in done), key=lambda notice: notice.gone_ns)


async def _follow(source: Source, config: NoticesConfig) -> Notice:
    """Ask until there is a notice to act on."""
    wait_ms, said = config.poll_ms, ""
    while True:
        notice, trouble, timeout_s = None, "", source.timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                notice = await source.ask()
        except Unreadable as error:
            trouble = str(error)
        except TimeoutError:
            trouble = f"no answer within {timeout_s:g} s"
        except (aiohttp.ClientError, OSError, ValueError) as error:  # the last: aiohttp's, of addresses that cannot be
            trouble = f"no answer: {error or repr(error)}"
        wait_ms = min(wait_ms * 2, max(config.retry_max_ms, config.poll_ms)) if trouble else config.poll_ms
        if notice is not None:
            left_s = (notice.gone_ns - now_ns()) / SECOND_NS
            if -STALE_S <= left_s <= config.ahead_s:
                log.warning("this machine will be gone", extra={"source": source.name, "cause": notice.cause, "seconds": round(left_s, 1)})
                return notice
            far = f"not before {config.ahead_s:g} s ahead" if left_s > 0 else "too old to be meant for this life of the machine"
            trouble = f"{notice.cause}: told, but {far}"
        if trouble != said:
            said = trouble
            if trouble:
                log.warning("planned losses: %s", trouble, extra={"source": source.name})
            else:
                log.info("planned losses are heard of again", extra={"source": source.name})
        await asyncio.sleep(wait_ms / 1e3)
