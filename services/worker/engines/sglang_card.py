"""The model card of a model folder in Hugging Face's layout."""

import hashlib
import json
from pathlib import Path
from typing import Any

from services.worker.engines.base import EngineError
from services.worker.engines.sglang_config import SglangConfig
from shared.contracts.fleet import ModelCard
from shared.contracts.outcomes import Reason


def read_card(config: SglangConfig) -> tuple[ModelCard, dict[str, bytes]]:
    """The card, and the files that it names. Raises EngineError when a file is missing. `context_tokens` is what the model was
    made for; a running engine may have room for less."""
    folder = Path(config.model_path)
    model = _read_json(folder / "config.json")
    tokenizer_settings = _read_json(folder / "tokenizer_config.json")
    tokenizer = _read(folder / "tokenizer.json")
    name = hashlib.sha256(tokenizer).hexdigest()
    card = ModelCard(
        name=config.model,
        tokenizer=name,
        chat_template=_chat_template(folder, tokenizer_settings),
        vocab_size=model["vocab_size"],
        context_tokens=model["max_position_embeddings"],
        block_tokens=config.page_size,
        eos_token_ids=_eos_token_ids(folder, model),
        bos_token=_text(tokenizer_settings.get("bos_token")),
        eos_token=_text(tokenizer_settings.get("eos_token")),
        tool_parser=config.tool_parser,
        reasoning_parser=config.reasoning_parser,
    )
    return card, {name: tokenizer}


def _chat_template(folder: Path, tokenizer_settings: dict[str, Any]) -> str:
    """From its own file, or from the tokenizer's settings, where older models have it; empty when there is none."""
    path = folder / "chat_template.jinja"
    if path.exists():
        return path.read_text()
    template = tokenizer_settings.get("chat_template")
    return template if isinstance(template, str) else ""


def _eos_token_ids(folder: Path, model: dict[str, Any]) -> list[int]:
    """Those that SGLang stops at: of the model's and of the generation's settings."""
    path = folder / "generation_config.json"
    generation = _read_json(path) if path.exists() else {}
    found: list[int] = []
    for settings in (model, generation):
        ids = settings.get("eos_token_id")
        found += ids if isinstance(ids, list) else [ids] if isinstance(ids, int) else []
    return list(dict.fromkeys(found))


def _text(token: Any) -> str:
    """A special token, which is a string or an object with its content."""
    if isinstance(token, dict):
        return str(token.get("content", ""))
    return token if isinstance(token, str) else ""


def _read_json(path: Path) -> dict[str, Any]:
    settings: dict[str, Any] = json.loads(_read(path))
    return settings


def _read(path: Path) -> bytes:
    if not path.exists():
        raise EngineError(
            f"the model folder has no {path}; `make setup-engine` builds the small one", reason=Reason.INTERNAL, retryable=False
        )
    return path.read_bytes()
