"""Wiring of the KV registry: prompts and cache changes in, matches out."""

import msgspec

from services.kv_registry.config import KvRegistryConfig
from services.kv_registry.decide import MACHINE
from services.kv_registry.paths import Paths, learn, shortened
from services.kv_registry.state import PromptSeen
from shared.contracts import subjects
from shared.contracts.envelope import Message
from shared.contracts.ids import ModelName
from shared.contracts.streams import FLEET, PROMPTS
from shared.core.reading import NoMessage, read
from shared.drivers.inputs import Unreadable, Wiring
from shared.drivers.service import run_machine
from shared.runtime.cursor import Record, Source
from shared.runtime.lifecycle import Context


class _Head(Message, frozen=True, kw_only=True, tag="prompt"):
    """A Prompt as far as it matters here: its tokens are skipped, and so never reach the journal."""

    model: ModelName
    blocks: list[int]
    block_tokens: int


_PROMPT = msgspec.json.Decoder(_Head)


async def run(context: Context) -> None:
    """Answer for the configured cell until told to stop."""
    config = context.section(KvRegistryConfig, "kv_registry")
    wiring = Wiring(
        sources=[
            Source(stream=PROMPTS.name, subjects=(subjects.PROMPT,)),
            Source(stream=FLEET.name, subjects=(subjects.WORKERS,), latest=True),
        ],
        live=[subjects.KV, subjects.BEATS],
        prepare=Prompts().prepare,
    )
    await run_machine(context, MACHINE, config, wiring, config.cell)


class Prompts:
    """Stored prompts as the machine sees them."""

    def __init__(self) -> None:
        self._paths = Paths()

    def prepare(self, record: Record) -> PromptSeen:
        """What is new of a prompt. Raises Unreadable."""
        try:
            head = read(_PROMPT, record.data)
        except NoMessage as error:
            raise Unreadable(str(error)) from error
        new = shortened(self._paths, head.blocks)
        learn(self._paths, new)
        return PromptSeen(**{**msgspec.structs.asdict(head), "blocks": new.blocks, "after": new.after})
