"""Typed identifiers. All are plain strings on the wire; the types keep them from being mixed up in code."""

import re
from typing import NewType

MessageId = NewType("MessageId", str)
StepId = NewType("StepId", str)  # chosen by whoever submits; a UUIDv7 where Legato chooses
WorkflowId = NewType("WorkflowId", str)
TenantId = NewType("TenantId", str)
WorkerId = NewType("WorkerId", str)
CellId = NewType("CellId", str)
ModelName = NewType("ModelName", str)
ConversationId = NewType("ConversationId", str)  # 32 hexadecimal digits, see shared/core/conversation.py
BlockHash = NewType("BlockHash", int)  # signed 64 bit, see shared/core/blocks.py

# An id is one token of a NATS subject: no dots, no wildcards, no white space.
SUBJECT_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,128}")


def is_subject_token(text: str) -> bool:
    """Whether `text` may stand as one token of a NATS subject."""
    return SUBJECT_TOKEN.fullmatch(text) is not None
