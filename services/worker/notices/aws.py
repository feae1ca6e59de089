"""EC2's instance metadata about spot instances. Pure.

The path is not there (404) until the instance is to be interrupted; then it holds the action and about when, two minutes ahead, as far as
EC2 can: {"action": "terminate", "time": "2017-09-18T08:22:00Z"}. A hibernation begins at once. A rebalance recommendation, {"noticeTime":
"2020-10-27T08:22:00Z"}, names no end: the interruption has become likelier, and may come with its own two minutes.

Sources: Amazon EC2 User Guide, "Spot Instance interruption notices" (docs.aws.amazon.com/AWSEC2/latest/UserGuide/
spot-instance-termination-notices.html), "EC2 instance rebalance recommendations" (…/rebalance-recommendations.html), and "Use the Instance
Metadata Service" for the tokens of version 2 (…/instancedata-data-retrieval.html). They advise to ask every 5 s.
"""

import msgspec

from services.worker.notices.notice import SECOND_NS, Notice, Unreadable, quoted, told, utc_ns

TOKEN_PATH = "/latest/api/token"  # PUT
ACTION_PATH = "/latest/meta-data/spot/instance-action"
REBALANCE_PATH = "/latest/meta-data/events/recommendations/rebalance"
TOKEN_TTL_HEADER = "X-aws-ec2-metadata-token-ttl-seconds"
TOKEN_HEADER = "X-aws-ec2-metadata-token"
TOKEN_TTL_S = 21_600  # the longest that may be asked for
TOKEN_CHARS_MAX = 1_024
NOTICE_S = 120  # between notice and interruption
ACTIONS = ("terminate", "stop", "hibernate")

_ACTION_EXAMPLE = '{"action": "terminate", "time": "2017-09-18T08:22:00Z"}'
_REBALANCE_EXAMPLE = '{"noticeTime": "2020-10-27T08:22:00Z"}'


class _Action(msgspec.Struct):
    action: str
    time: str


class _Rebalance(msgspec.Struct):
    notice_time: str = msgspec.field(name="noticeTime")


def token(content: bytes) -> str:
    """The session token to send with each question. Raises Unreadable."""
    text = content.decode("latin-1").strip()
    if not (text.isascii() and text.isprintable() and 0 < len(text) <= TOKEN_CHARS_MAX) or " " in text:
        raise Unreadable(f"EC2's metadata service gave no token but {quoted(content)}; it should be one printable word")
    return text


def interruption(content: bytes, now_ns: int) -> Notice:
    """What `instance-action` holds. Raises Unreadable."""
    try:
        said = msgspec.json.decode(content, type=_Action)
        gone_ns = utc_ns(said.time)
        if said.action not in ACTIONS:
            raise ValueError(f"unknown action {said.action[:40]!r}")
    except (ValueError, RecursionError, OverflowError) as error:  # msgspec's errors are ValueErrors
        raise Unreadable(f"EC2's instance-action is {quoted(content)} ({told(error)}); it should be like {_ACTION_EXAMPLE}") from error
    return Notice(f"EC2 spot {said.action}", now_ns if said.action == "hibernate" else gone_ns)


def rebalance(content: bytes, now_ns: int) -> Notice:
    """What `rebalance` holds. The interruption itself may come with two minutes' notice at any time. Raises Unreadable."""
    try:
        utc_ns(msgspec.json.decode(content, type=_Rebalance).notice_time)
    except (ValueError, RecursionError, OverflowError) as error:
        raise Unreadable(f"EC2's rebalance is {quoted(content)} ({told(error)}); it should be like {_REBALANCE_EXAMPLE}") from error
    return Notice("EC2 rebalance recommendation", now_ns + NOTICE_S * SECOND_NS)
