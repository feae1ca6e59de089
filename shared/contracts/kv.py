"""Which KV blocks lie where."""

import msgspec

from shared.contracts.envelope import Message
from shared.contracts.ids import CellId, ModelName, WorkerId


class BlocksStored(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="stored"):
    """Blocks now held, in chain order. The hash covers all tokens before, so no parent is needed to find a prefix."""

    hashes: list[int]


class BlocksRemoved(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="removed"):
    """Blocks no longer held."""

    hashes: list[int]


class AllCleared(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="cleared"):
    """The cache is empty."""


KvEvent = BlocksStored | BlocksRemoved | AllCleared


class KvChanged(Message, frozen=True, kw_only=True, tag="kv.changed"):
    """One batch of cache changes of one worker; `seq` grows by one with each batch of an epoch, from 1."""

    worker: WorkerId
    cell: CellId
    epoch: int
    seq: int
    events: list[KvEvent]


class KvSnapshot(Message, frozen=True, kw_only=True, tag="kv.snapshot"):
    """All blocks of a worker as of `seq`: the answer to a resync request. `part` of `parts`, from 0, published in order."""

    worker: WorkerId
    cell: CellId
    epoch: int
    seq: int
    hashes: list[int]
    part: int = 0
    parts: int = 1


class KvResyncRequested(Message, frozen=True, kw_only=True, tag="kv.resync"):
    """The registry missed something of this worker and asks for a snapshot."""

    worker: WorkerId
    cell: CellId


class PrefixMatched(Message, frozen=True, kw_only=True, tag="prefix.matched"):
    """How many leading blocks of a step's prompt each worker holds. A worker of the model that `blocks` does not name holds `others`: 0,
    but in large fleets in which most hold the same. A message that names a thousand workers costs more than what it is about."""

    cell: CellId
    model: ModelName
    blocks: dict[WorkerId, int]
    block_tokens: int
    others: int = 0
