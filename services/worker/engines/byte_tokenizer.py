"""A real Hugging Face tokenizer whose vocabulary is the 256 bytes: token n is byte n, then come the special tokens.

It needs no training and no download, encodes any text and decodes it back. For the simulated engine and for tests.
"""

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

END_OF_TEXT = "<|endoftext|>"
MESSAGE_START = "<|im_start|>"
MESSAGE_END = "<|im_end|>"
SPECIAL_TOKENS = (END_OF_TEXT, MESSAGE_START, MESSAGE_END)

VOCAB_SIZE = 256 + len(SPECIAL_TOKENS)
EOS_TOKEN_IDS = [256 + SPECIAL_TOKENS.index(MESSAGE_END), 256 + SPECIAL_TOKENS.index(END_OF_TEXT)]

# Turns of a conversation in the ChatML manner; tools and tool calls are shown as JSON.
CHAT_TEMPLATE = """\
{%- if tools -%}
<|im_start|>system
{{ tools | tojson }}<|im_end|>
{% endif -%}
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{{ message.content or "" }}{% if message.tool_calls %}{{ message.tool_calls | tojson }}{% endif %}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}
"""


def build() -> bytes:
    """The content of its tokenizer.json."""
    tokenizer = Tokenizer(models.BPE(vocab=_alphabet(), merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL_TOKENS])
    return tokenizer.to_str().encode()


def _alphabet() -> dict[str, int]:
    """The character by which the byte-level scheme writes each byte (as in GPT-2's vocabulary): itself where it is printable
    Latin-1, else the next unused code point from 256 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + index): byte for index, byte in enumerate(others)}
