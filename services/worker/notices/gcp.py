"""Compute Engine's metadata about preemption and host maintenance. Pure.

`preempted` turns from FALSE to TRUE when a spot machine is preempted, which has up to 30 s from then on. `maintenance-event` is NONE,
MIGRATE_ON_HOST_MAINTENANCE (the machine moves with all that it holds: no loss) or TERMINATE_ON_HOST_MAINTENANCE, told 60 s ahead, to
machines with GPUs an hour ahead. Neither says when. With `wait_for_change=true` the server answers when the value is another than the one
with `last_etag`, or after `timeout_sec`.

Sources: Compute Engine, "Spot VMs" (cloud.google.com/compute/docs/instances/spot), "Create and use Spot VMs" (…/create-use-spot), "Query
metadata server for maintenance event notices" (cloud.google.com/compute/docs/metadata/getting-live-migration-notice), "Handle GPU host
maintenance events" (cloud.google.com/compute/docs/gpus/gpu-host-maintenance) and "View and query VM metadata"
(cloud.google.com/compute/docs/metadata/querying-metadata).
"""

from services.worker.notices.notice import SECOND_NS, Notice, Unreadable, quoted

PREEMPTED_PATH = "/computeMetadata/v1/instance/preempted"
MAINTENANCE_PATH = "/computeMetadata/v1/instance/maintenance-event"
HEADERS = {"Metadata-Flavor": "Google"}  # without it, the server refuses
PREEMPTED_S = 30


def preempted(content: bytes, since_ns: int) -> Notice | None:
    """What `preempted` holds since then. Raises Unreadable."""
    match content.strip().upper():
        case b"FALSE":
            return None
        case b"TRUE":
            return Notice("GCP preemption", since_ns + PREEMPTED_S * SECOND_NS)
    raise Unreadable(f"GCP's preempted is {quoted(content)}; it should be TRUE or FALSE")


def maintenance(content: bytes, since_ns: int, notice_s: float) -> Notice | None:
    """What `maintenance-event` holds since then; the machine stops `notice_s` later. Raises Unreadable."""
    match content.strip().upper():
        case b"NONE" | b"MIGRATE_ON_HOST_MAINTENANCE":
            return None
        case b"TERMINATE_ON_HOST_MAINTENANCE":
            return Notice("GCP host maintenance", since_ns + int(notice_s * SECOND_NS))
    raise Unreadable(
        f"GCP's maintenance-event is {quoted(content)}; it should be NONE, MIGRATE_ON_HOST_MAINTENANCE or TERMINATE_ON_HOST_MAINTENANCE"
    )
