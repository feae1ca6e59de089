"""Azure's Scheduled Events. Pure.

The answer lists what is to happen to all machines of a group, so that each looks for its own name among an event's `Resources`. Losses are
Reboot (15 minutes ahead), Redeploy (10), Preempt (30 s) and Terminate (5 to 15 minutes, as configured); a Freeze pauses the machine for
seconds and loses nothing. `NotBefore` is blank once an event has started; a failed host is told only then. Events are left unapproved, so
that the time until `NotBefore` stays.

Source: Azure, "Scheduled Events for Linux VMs" (learn.microsoft.com/azure/virtual-machines/linux/scheduled-events), api-version 2020-07-01.
It advises to ask every second, and says that the first answer may take two minutes.
"""

import msgspec

from services.worker.notices.notice import Notice, Unreadable, quoted, told, utc_ns

EVENTS_PATH = "/metadata/scheduledevents?api-version=2020-07-01"
HEADERS = {"Metadata": "true"}  # without it, the service refuses
FIRST_ANSWER_S = 150.0
LOSSES = ("Preempt", "Terminate", "Reboot", "Redeploy")

_EXAMPLE = '{"EventType": "Preempt", "Resources": ["vm_0"], "EventStatus": "Scheduled", "NotBefore": "Mon, 19 Sep 2016 18:29:47 GMT"}'


class _Document(msgspec.Struct, rename="pascal"):
    events: list[msgspec.Raw]


class _Event(msgspec.Struct, rename="pascal"):
    event_type: str
    resources: list[str]
    event_status: str = "Scheduled"
    not_before: str | None = None


def losses(content: bytes, resource: str, now_ns: int) -> Notice | None:
    """The first loss of the machine named `resource`. Raises Unreadable when there is none among what can be read, and something cannot."""
    try:
        events = msgspec.json.decode(content, type=_Document).events
    except (ValueError, RecursionError) as error:
        raise Unreadable(f'Azure\'s scheduled events are {quoted(content)} ({told(error)}); they should be {{"Events": […]}}') from error
    found: list[Notice] = []
    unreadable: Unreadable | None = None
    for event in events:
        try:
            found += _loss(bytes(event), resource, now_ns)
        except Unreadable as error:
            unreadable = unreadable or error
    if not found and unreadable is not None:
        raise unreadable
    return min(found, key=lambda notice: notice.gone_ns, default=None)


def _loss(content: bytes, resource: str, now_ns: int) -> list[Notice]:
    try:
        event = msgspec.json.decode(content, type=_Event)
        if event.event_type not in LOSSES or resource.casefold() not in (name.casefold() for name in event.resources):
            return []
        gone_ns = now_ns if event.event_status == "Started" or not event.not_before else utc_ns(event.not_before)
    except (ValueError, RecursionError, OverflowError) as error:
        raise Unreadable(f"one of Azure's scheduled events is {quoted(content)} ({told(error)}); it should be like {_EXAMPLE}") from error
    return [Notice(f"Azure {event.event_type}", gone_ns)]
