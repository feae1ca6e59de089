"""`[kv_registry]`: one cell's prefix index."""

from typing import Annotated

import msgspec
from msgspec import Meta

from shared.contracts.ids import CellId


class KvRegistryConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Times in milliseconds."""

    cell: CellId = CellId("local")
    answer_within_ms: Annotated[int, Meta(ge=1)] = 10_000  # nobody waits for the match of an older prompt
