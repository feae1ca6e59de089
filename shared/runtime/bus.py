"""One process's connection to NATS: streams, publishing, reading, objects. Nothing here knows what a message means."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgspec
import nats
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.js import JetStreamContext, api
from nats.js.errors import BucketNotFoundError, NotFoundError, ObjectNotFoundError, ServiceUnavailableError

from shared.contracts.streams import LEASES_BUCKET, MODELS_BUCKET, RESERVED_BYTES, SNAPSHOTS_BUCKET, STREAMS, Stream
from shared.core.errors import LegatoError
from shared.runtime.clock import stamp_of, unix_ns
from shared.runtime.cursor import Cursor, Record, Source
from shared.runtime.nats_client import NatsClient, Take, check_scheme
from shared.runtime.publisher import Ack, Publisher
from shared.runtime.requests import TIMEOUT_S, Requests

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 30.0
CLOSE_TIMEOUT_S = 5.0
OUTBOUND_MAX_BYTES = 64 * 2**20  # kept while the server is away
LEASE_TTL_S = 6.0
FETCH_TIMEOUT_S = TIMEOUT_S
NO_DISK = 10047  # JSStorageResourcesExceededErr of nats-server
TOO_LITTLE_DISK = (
    f"they reserve {RESERVED_BYTES / 2**30:g} GiB on each nats-server that keeps them, and it has less; use a larger disk, or tell it in "
    "its configuration how much it may reserve (`max_file_store`, see docs/deployment.md)"
)
_SERVER_MIN = (2, 12)
# What a good-bye to a server that went meanwhile ends with; uvloop raises RuntimeError for a transport that is closed.
UNSAID = (nats.errors.Error, OSError, TimeoutError, RuntimeError)


class BusConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`[bus]`: where NATS is. Credentials file and TLS as nats-server hands them out."""

    url: str = "nats://127.0.0.1:4222"
    credentials: str = ""  # path of a .creds file
    replicas: int = 1  # of streams and buckets; 3 in a cluster


class BusError(LegatoError):
    """NATS cannot be reached or answers what it should not."""


class Extent(NamedTuple):
    """What a stream held at a time. Times by nats-server's clock, Unix, nanoseconds."""

    at_ns: int
    messages: int
    first_seq: int
    last_seq: int
    first_ns: int
    last_ns: int


class _StreamState(msgspec.Struct):
    messages: int
    first_seq: int
    last_seq: int
    first_ts: str
    last_ts: str


class _StreamInfo(msgspec.Struct):
    ts: str = ""
    state: _StreamState | None = None


class Bus:
    """Use as: `bus = await Bus.connect(config, name)`, and at the end `await bus.close()`."""

    def __init__(self, client: NatsClient, config: BusConfig) -> None:
        self.client = client
        self.config = config
        self.js: JetStreamContext = client.jetstream(timeout=FETCH_TIMEOUT_S)
        self.publisher = Publisher(client)
        self.requests = Requests(client)
        self.closed = asyncio.Event()  # for good, by `close` or because the server says so (credentials that expired): nothing comes back
        self._encode = msgspec.json.encode

    @classmethod
    async def connect(cls, config: BusConfig, name: str) -> "Bus":
        """Connect, waiting up to 30 s for the server. Raises BusError, and LegatoError for an address that is none of NATS."""
        check_scheme(config.url)
        client = NatsClient()
        holder: list[Bus] = []

        async def reconnected() -> None:
            log.info("reconnected to NATS")
            for bus in holder:
                bus.publisher.resend_soon()

        async def disconnected() -> None:
            if not client.is_closed:  # which it is after `close`
                log.warning("lost the connection to NATS, reconnecting")

        async def closed() -> None:
            for bus in holder:
                bus.closed.set()

        options: dict[str, Any] = {"user_credentials": config.credentials} if config.credentials else {}
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await _connect_when_there(client, config.url, name, (reconnected, disconnected, closed), options)
        except (nats.errors.Error, OSError, TimeoutError) as error:
            await client.close()
            raise BusError(f"cannot reach NATS at {config.url}: {str(error) or 'no answer'}; is nats-server running there?") from error
        version = client.connected_server_version
        if (version.major, version.minor) < _SERVER_MIN:
            await client.close()
            raise BusError(f"nats-server {version} at {config.url} is too old; Legato needs {'.'.join(map(str, _SERVER_MIN))} or newer")
        bus = cls(client, config)
        holder.append(bus)
        await bus.publisher.start()
        await bus.requests.start()
        return bus

    async def close(self) -> None:
        """Send what is buffered and disconnect."""
        await self.publisher.stop()
        await self.requests.stop()
        if not self.client.is_closed:
            try:
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await self.client.drain()
            except UNSAID:
                await self._hang_up()

    async def _hang_up(self) -> None:
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self.client.close()
        except UNSAID as error:  # the server is away, so there is nothing to say good-bye to
            log.debug("closed without good-bye", extra={"error": str(error)})

    # --- sending -------------------------------------------------------------------------------------------------------------

    async def publish(self, subject: str, data: bytes, reply: str = "") -> None:
        """At most once, to whoever listens now. Raises BusError when it cannot even be buffered until NATS is back."""
        with _bus_errors(f"cannot publish on {subject}"):
            await self.client.publish(subject, data, reply)

    async def store(
        self, subject: str, data: bytes, *, msg_id: str = "", trace: str = "", expect_last: int | None = None
    ) -> asyncio.Future[Ack]:
        """Into the stream of that subject; the future gives the acknowledgement. See Publisher.store."""
        return await self.publisher.store(subject, data, msg_id=msg_id, trace=trace, expect_last=expect_last)

    # --- reading -------------------------------------------------------------------------------------------------------------

    async def subscribe(self, subject: str, handle: Callable[[Msg], Awaitable[None]], queue: str = "") -> Subscription:
        """Live messages only. At most 65,536 wait; more are dropped and logged by the client."""
        return await self.client.subscribe(subject, queue=queue, cb=handle, pending_msgs_limit=65_536, pending_bytes_limit=256 * 2**20)

    async def listen(self, subject: str, take: Take) -> Subscription:
        """Live messages, each given to `take` as soon as it is read: for many messages, and a `take` that is quick and bounded."""
        return await self.client.listen(subject, take)

    async def read(self, source: Source, after: int = 0, arrived: asyncio.Event | None = None) -> Cursor:
        """A cursor behind stream sequence `after`; see Cursor.open. Raises BusError, CursorError."""
        with _bus_errors(f"cannot read {source.stream}"):
            return await Cursor.open(self.client, source, after, arrived)

    async def last(self, stream: str, subject: str) -> Record | None:
        """The last message of a subject, or None. One direct request."""
        return await self._direct(stream, {"last_by_subj": subject})

    async def hand_last(self, stream: str, subject: str, to: str) -> None:
        """Have the server send the last message of a subject to whoever listens on `to`, with its headers; where there is none, an empty
        message with the status 404. At most once. Raises BusError."""
        await self.publish(f"$JS.API.DIRECT.GET.{stream}", self._encode({"last_by_subj": subject}), to)

    async def next_after(self, stream: str, subject: str, after: int) -> Record | None:
        """The first message of a subject with a stream sequence above `after`, or None."""
        return await self._direct(stream, {"seq": after + 1, "next_by_subj": subject})

    async def first_since(self, stream: str, subject: str, since_ns: int) -> Record | None:
        """The first message of a subject or pattern that was stored at or after a Unix time, or None."""
        return await self._direct(stream, {"start_time": stamp_of(since_ns), "next_by_subj": subject})

    async def extent(self, stream: str) -> Extent:
        """What a stream holds now. Raises BusError."""
        with _bus_errors(f"cannot look at {stream}"):
            answer = await self.requests.ask(f"$JS.API.STREAM.INFO.{stream}", b"")
        info = msgspec.json.decode(answer.data, type=_StreamInfo)
        if info.state is None:
            raise BusError(f"cannot look at {stream}: {answer.data[:200].decode(errors='replace')}")
        state = info.state
        return Extent(unix_ns(info.ts), state.messages, state.first_seq, state.last_seq, unix_ns(state.first_ts), unix_ns(state.last_ts))

    async def purge(self, stream: str, before: int) -> None:
        """Remove all messages with a lower stream sequence. Raises BusError."""
        with _bus_errors(f"cannot remove from {stream}"):
            await self.js.purge_stream(stream, seq=before)

    async def history(self, stream: str, subject: str, after: int = 0) -> AsyncIterator[Record]:
        """All stored messages of a subject or pattern, oldest first; ends with the last one that was there at the call. Raises BusError."""
        with _bus_errors(f"cannot read {stream}"):
            state = (await self.js.stream_info(stream)).state
        last = await self.last(stream, subject)
        if last is None or last.seq <= after:
            return
        cursor = await self.read(Source(stream=stream, subjects=(subject,)), max(after, state.first_seq - 1))
        try:
            while True:
                with _bus_errors(f"cannot read {stream}"):
                    async with asyncio.timeout(30.0):
                        records = await cursor.take(512)
                for record in records:
                    if record.seq <= last.seq:
                        yield record
                    if record.seq >= last.seq:
                        return
        finally:
            await cursor.close()

    async def _direct(self, stream: str, request: dict[str, Any]) -> Record | None:
        try:
            answer = await self.requests.ask(f"$JS.API.DIRECT.GET.{stream}", self._encode(request))
        except nats.errors.NoRespondersError as error:
            raise BusError(f"there is no stream {stream} (or JetStream still starts); `legato migrate` creates it") from error
        except (nats.errors.Error, TimeoutError) as error:
            raise BusError(f"cannot read {stream}: {str(error) or 'no answer'}") from error
        headers = answer.headers
        if headers.get("Status") == "404":
            return None
        if "Nats-Sequence" not in headers:
            raise BusError(f"cannot read {stream}: {headers.get('Description', headers)}")
        return Record(stream, int(headers["Nats-Sequence"]), headers["Nats-Subject"], answer.data, answer.raw_headers)

    # --- streams and buckets -------------------------------------------------------------------------------------------------

    async def ensure_streams(self) -> None:
        """Create or update every stream and bucket, waiting up to 30 s for JetStream. Many processes may do so at once. Raises BusError."""
        loop = asyncio.get_running_loop()
        end = loop.time() + CONNECT_TIMEOUT_S
        with _bus_errors("cannot create the streams"):
            while True:
                try:
                    return await self._ensure_all()
                except (nats.errors.TimeoutError, nats.errors.NoRespondersError, ServiceUnavailableError):
                    if loop.time() > end:
                        raise
                    await asyncio.sleep(0.2)

    async def _ensure_all(self) -> None:
        for stream in STREAMS:
            await self._ensure(stream)
        for bucket in (MODELS_BUCKET, SNAPSHOTS_BUCKET):
            try:
                await self.js.object_store(bucket)
            except (BucketNotFoundError, NotFoundError):
                await self.js.create_object_store(bucket, config=api.ObjectStoreConfig(replicas=self.config.replicas))
        try:
            await self.js.key_value(LEASES_BUCKET)
        except (BucketNotFoundError, NotFoundError):
            await self.js.create_key_value(
                config=api.KeyValueConfig(LEASES_BUCKET, history=1, ttl=LEASE_TTL_S, replicas=self.config.replicas)
            )

    async def _ensure(self, stream: Stream) -> None:
        config = api.StreamConfig(
            name=stream.name,
            subjects=stream.subjects,
            max_bytes=stream.max_bytes,
            max_age=stream.max_age_s,
            max_msgs_per_subject=stream.max_msgs_per_subject,
            max_msg_size=stream.max_msg_bytes,
            duplicate_window=stream.duplicate_window_s,
            num_replicas=self.config.replicas,
            discard=api.DiscardPolicy.OLD,
            storage=api.StorageType.FILE,
            allow_direct=True,
            **_moved(stream),
        )
        try:
            await self.js.stream_info(stream.name)
            await self.js.update_stream(config)
        except NotFoundError:
            await self.js.add_stream(config)

    async def put_object(self, bucket: str, name: str, content: bytes) -> None:
        """Keep an object under a name, in pieces of 128 KiB. Raises BusError, as all these do."""
        with _bus_errors(f"cannot keep {name}"):
            async with asyncio.timeout(60.0):
                await (await self.js.object_store(bucket)).put(name, content)

    async def get_object(self, bucket: str, name: str) -> bytes | None:
        """The object, or None."""
        with _bus_errors(f"cannot fetch {name}"):
            store = await self.js.object_store(bucket)
            try:
                async with asyncio.timeout(60.0):
                    return (await store.get(name)).data
            except ObjectNotFoundError:
                return None

    async def has_object(self, bucket: str, name: str) -> bool:
        """Whether there is an object of that name."""
        with _bus_errors(f"cannot look for {name}"):
            store = await self.js.object_store(bucket)
            try:
                async with asyncio.timeout(FETCH_TIMEOUT_S):
                    await store.get_info(name)
            except ObjectNotFoundError:
                return False
            return True

    async def list_objects(self, bucket: str) -> list[str]:
        """All names, sorted."""
        with _bus_errors(f"cannot list {bucket}"):
            store = await self.js.object_store(bucket)
            try:
                async with asyncio.timeout(30.0):
                    return sorted(info.name for info in await store.list() if not info.deleted)
            except NotFoundError:
                return []

    async def delete_object(self, bucket: str, name: str) -> None:
        """Drop an object."""
        with _bus_errors(f"cannot delete {name}"):
            async with asyncio.timeout(30.0):
                await (await self.js.object_store(bucket)).delete(name)


def _moved(stream: Stream) -> dict[str, Any]:
    """The options that keep a stream's messages under another subject, and send them on there."""
    if not stream.stored_as:
        return {}
    place = stream.stored_as.replace("*", "{{wildcard(1)}}")
    return {
        "subject_transform": api.SubjectTransform(src=stream.subjects[0], dest=place),
        "republish": api.RePublish(src=stream.stored_as, dest=place),
    }


@contextmanager
def _bus_errors(what: str) -> Iterator[None]:
    """Whatever the client or the server refuses, and what is not answered in time, as one error that says what was tried."""
    try:
        yield
    except nats.errors.OutboundBufferLimitError as error:
        raise BusError(f"{what}: NATS is away and the outbound buffer is full") from error
    except (nats.errors.Error, TimeoutError) as error:
        if getattr(error, "err_code", 0) == NO_DISK:
            raise BusError(f"{what}: {TOO_LITTLE_DISK}") from error
        raise BusError(f"{what}: {str(error) or 'no answer'}") from error


async def _failed(error: Exception) -> None:
    """Errors of the connection, which mends itself, and of whoever handles a message, which would be heard of nowhere else."""
    if isinstance(error, nats.errors.SlowConsumerError):
        log.warning("messages dropped, they come faster than they are handled", extra={"subject": error.subject})
    elif isinstance(error, LegatoError):
        log.warning("a message was not handled: %s", error)
    elif isinstance(error, nats.errors.Error | OSError):
        log.debug("NATS connection: %r", error)
    else:
        log.error("the handling of a message failed", exc_info=error)


Callback = Callable[..., Awaitable[None]]


async def _connect_when_there(
    client: Client, url: str, name: str, callbacks: tuple[Callback, Callback, Callback], options: dict[str, Any]
) -> None:
    reconnected, disconnected, closed = callbacks
    while True:
        try:
            await client.connect(
                servers=url.split(","),
                name=name,
                max_reconnect_attempts=-1,
                reconnect_time_wait=0.25,  # type: ignore[arg-type]  # seconds; nats-py sleeps so long, fractions too
                ping_interval=5,
                max_outstanding_pings=2,
                pending_size=OUTBOUND_MAX_BYTES,
                reconnected_cb=reconnected,
                disconnected_cb=disconnected,
                closed_cb=closed,
                error_cb=_failed,
                allow_reconnect=True,
                skip_subject_validation=True,  # whoever builds subjects of what users say checks it first (is_subject_token)
                **options,
            )
            return
        except (nats.errors.NoServersError, OSError):
            await asyncio.sleep(0.2)
