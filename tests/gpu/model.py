"""Makes a language model that counts: after each character it says the next one of its alphabet.

    model.py HUB OWNER/NAME

It is a real Llama, small, in the layout of Hugging Face's cache directory HUB. Its layers add
nothing, and the row of its head for a token is the embedding of the token before it, so that its
greedy answer is the same on any hardware.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

END = "<end>"
REVISION = "1" * 40
TEMPLATE = "{% for message in messages %}{{ message.content }}\n{% endfor %}:"


def tokenizer() -> PreTrainedTokenizerFast:
    """Make a tokenizer of single bytes, and of the end."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([*alphabet, END])}
    plain = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(tokenizer_object=plain, eos_token=END, pad_token=END)
    made.chat_template = TEMPLATE
    return made


def model(tokens: int) -> LlamaForCausalLM:
    """Make a model that says one token after the other."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=tokens,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokens - 1,
        pad_token_id=tokens - 1,
        dtype="bfloat16",
    )
    made = LlamaForCausalLM(config)
    with torch.no_grad():
        embedding = torch.randn(tokens, config.hidden_size)
        made.model.embed_tokens.weight.copy_(embedding)
        made.lm_head.weight.copy_(embedding.roll(1, dims=0))
        for layer in made.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    return made.to(torch.bfloat16)


def main(hub: str, name: str) -> None:
    """Write tokenizer and model."""
    cached = Path(hub, f"models--{name.replace('/', '--')}")
    snapshot = cached / "snapshots" / REVISION
    snapshot.mkdir(parents=True)
    (cached / "refs").mkdir()
    (cached / "refs/main").write_text(REVISION, encoding="utf-8")
    words = tokenizer()
    words.save_pretrained(snapshot)
    model(len(words)).save_pretrained(snapshot)


if __name__ == "__main__":
    main(*sys.argv[1:])
