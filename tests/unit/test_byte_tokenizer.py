"""The byte tokenizer is a real tokenizer whose tokens are bytes."""

import jinja2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from services.worker.engines import byte_tokenizer

TOKENIZER = Tokenizer.from_str(byte_tokenizer.build().decode())


@given(st.text(max_size=200))
def test_any_text_is_encoded_as_its_bytes_and_decoded_back(text: str) -> None:
    ids = TOKENIZER.encode(text, add_special_tokens=False).ids
    assert TOKENIZER.decode(ids, skip_special_tokens=False) == text
    if "<|" not in text:
        assert ids == [*text.encode()]


def test_its_special_tokens_lie_behind_the_bytes() -> None:
    assert TOKENIZER.get_vocab_size() == byte_tokenizer.VOCAB_SIZE == 259
    assert TOKENIZER.encode("<|im_start|>a<|im_end|>").ids == [257, 97, 258]
    assert [TOKENIZER.token_to_id("<|im_end|>"), TOKENIZER.token_to_id("<|endoftext|>")] == byte_tokenizer.EOS_TOKEN_IDS


@pytest.mark.parametrize("trim", [True, False])
@pytest.mark.parametrize(("generate", "end"), [(True, "<|im_start|>assistant\n"), (False, "")])
def test_its_chat_template_writes_one_turn_after_another(trim: bool, generate: bool, end: str) -> None:
    environment = jinja2.Environment(autoescape=False, trim_blocks=trim, lstrip_blocks=trim)
    call = {"role": "assistant", "content": None, "tool_calls": [{"name": "f"}]}
    text = environment.from_string(byte_tokenizer.CHAT_TEMPLATE).render(
        messages=[{"role": "user", "content": "Hi\n"}, call], add_generation_prompt=generate
    )
    assert text == f'<|im_start|>user\nHi\n<|im_end|>\n<|im_start|>assistant\n[{{"name": "f"}}]<|im_end|>\n{end}'


def test_the_same_bytes_are_built_each_time() -> None:
    assert byte_tokenizer.build() == byte_tokenizer.build()
