"""Makes a random Qwen3 of 140,000 parameters, with a tokenizer and a chat template that thinks.

    tiny.py FOLDER

Its answers mean nothing; an engine loads and serves it as it would a large one.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

END, PAD = "<|im_end|>", "<|endoftext|>"
SPECIAL = [PAD, "<|im_start|>", END, "<think>", "</think>", "<tool_call>", "</tool_call>"]
TEXT = ["hello world ok one two three the boats lay quiet in the harbour of the old town "] * 20
TEMPLATE = """\
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content if message.content is string else message.content[0].text }}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and enable_thinking is false %}<think>

</think>

{% else %}<think>
{% endif %}{% endif %}"""
WINDOW = 8192
"""Tokens that the model declares; more is refused by every engine."""


def tokenizer() -> PreTrainedTokenizerFast:
    """Train a tokenizer of 512 entries on one sentence."""
    plain = Tokenizer(models.BPE(unk_token=None))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=512, special_tokens=SPECIAL, initial_alphabet=alphabet)
    plain.train_from_iterator(TEXT, trainer)
    made = PreTrainedTokenizerFast(tokenizer_object=plain, eos_token=END, pad_token=PAD)
    made.chat_template = TEMPLATE
    return made


def main(folder: str) -> None:
    """Write tokenizer and model; every account may read them."""
    words = tokenizer()
    words.save_pretrained(folder)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=WINDOW,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=words.convert_tokens_to_ids(END),
        pad_token_id=0,
        dtype="bfloat16",
    )
    Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    for file in Path(folder).iterdir():
        file.chmod(0o644)


if __name__ == "__main__":
    main(*sys.argv[1:])
