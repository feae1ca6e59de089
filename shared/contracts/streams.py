"""Streams and buckets: names, subjects, retention and limits, in one place.

All streams keep messages by limits, not by interest: they are the log. Readers keep their own position together with the effects of
what they read (docs/decisions/0004-positions-live-with-their-effects.md), so a stream holds no consumer state worth keeping.
"""

import msgspec

from shared.contracts import subjects

GIB = 2**30
HOUR_S = 3600


class Stream(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one JetStream stream. Sizes in bytes, times in seconds; -1: no limit. File storage throughout."""

    name: str
    subjects: list[str]
    max_bytes: int
    max_age_s: float
    duplicate_window_s: float = 120.0  # a message id is remembered so long: it must outlast a service's restart
    max_msgs_per_subject: int = -1
    max_msg_bytes: int = 8 * 2**20
    replicas: int = 1  # [bus] replicas in the configuration raises it in a cluster
    stored_as: str = ""  # instead of the subject, `*` for `*`; whoever listens there is sent what is stored, once it is, and nothing else


STEPS = Stream(
    name="LEGATO_STEPS",
    subjects=["legato.submit.*", "legato.cancel.*", "legato.step.>", subjects.WORKFLOWS],
    max_bytes=2 * GIB,
    max_age_s=24 * HOUR_S,
)
PROMPTS = Stream(name="LEGATO_PROMPTS", subjects=[subjects.PROMPT], max_bytes=4 * GIB, max_age_s=24 * HOUR_S, max_msgs_per_subject=1)
TURNS = Stream(name="LEGATO_TURNS", subjects=[subjects.TURN], max_bytes=2 * GIB, max_age_s=24 * HOUR_S, max_msgs_per_subject=1)
OUT = Stream(name="LEGATO_OUT", subjects=[subjects.OUTBOX], stored_as=subjects.OUT, max_bytes=4 * GIB, max_age_s=24 * HOUR_S)
FLEET = Stream(
    name="LEGATO_FLEET", subjects=[subjects.WORKERS, subjects.TARGETS], max_bytes=GIB // 4, max_age_s=HOUR_S, max_msgs_per_subject=1
)
JOURNAL = Stream(name="LEGATO_JOURNAL", subjects=["legato.journal.*.*"], max_bytes=4 * GIB, max_age_s=72 * HOUR_S)
DEAD = Stream(name="LEGATO_DEAD", subjects=[subjects.DEAD], max_bytes=GIB // 4, max_age_s=7 * 24 * HOUR_S, max_msg_bytes=2**20)

STREAMS = (STEPS, PROMPTS, TURNS, OUT, FLEET, JOURNAL, DEAD)
RESERVED_BYTES = sum(stream.max_bytes for stream in STREAMS)  # on each server that keeps them, whether used or not

LEASES_BUCKET = "legato_leases"  # key-value: who drives a partition
MODELS_BUCKET = "legato_models"  # objects: tokenizers, by the SHA-256 of their content
SNAPSHOTS_BUCKET = "legato_snapshots"  # objects: machine states, <service>.<partition>.<entry number>
SNAPSHOTS_KEPT = 4  # per partition
