"""`[gateway]`: where HTTP is served, and the limits of one gateway process."""

from typing import Annotated

import msgspec
from msgspec import Meta


class GatewayConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes in bytes, times in milliseconds."""

    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65_535)] = 8080  # 0: a free one, shown by `legato status`
    body_bytes_max: Annotated[int, Meta(ge=1024)] = 8 * 2**20  # of one request, decompressed; a stream takes no more in one message
    bodies_bytes_max: Annotated[int, Meta(ge=1024)] = 256 * 2**20  # of all requests that are being read and submitted
    body_timeout_ms: Annotated[int, Meta(ge=1)] = 30_000  # for the body to arrive
    requests_max: Annotated[int, Meta(ge=1)] = 4096  # in flight; more are answered 503
    choices_max: Annotated[int, Meta(ge=1, le=128)] = 16  # of one request (`n`): each is a step
    submit_timeout_ms: Annotated[int, Meta(ge=1)] = 10_000  # for JetStream to take a submission
    keep_alive_comment_ms: Annotated[int, Meta(ge=1)] = 5_000  # of silence, until a stream says `: keep-alive`
    idle_timeout_ms: Annotated[int, Meta(ge=1)] = 600_000  # of silence, until a step that named no timeout is given up
    overall_timeout_ms: Annotated[int, Meta(ge=1)] = 3_600_000  # of a step that named no timeout
    timeout_grace_ms: Annotated[int, Meta(ge=0)] = 5_000  # behind a step's own timeout: the fleet's answer to it goes first
    write_timeout_ms: Annotated[int, Meta(ge=1)] = 30_000  # for a client that does not read; then it counts as gone
    connection_idle_ms: Annotated[int, Meta(ge=1)] = 75_000  # of a connection between two requests
    drain_timeout_ms: Annotated[int, Meta(ge=0)] = 10_000  # for requests in flight on SIGTERM; then they are cut off
    worker_silent_ms: Annotated[int, Meta(ge=1)] = 35_000  # workers repeat their cards every 10 s; older ones are not listed
    workflow_run_ms: Annotated[int, Meta(ge=0, le=3_600_000)] = 60_000  # how long the record of a workflow is kept after it was read
    workflow_steps_kept_max: Annotated[int, Meta(ge=0)] = 100_000  # of all records that are kept
    workflow_wait_ms: Annotated[int, Meta(ge=0)] = 5_000  # for the workflow service or its Postgres to come back; then 503
