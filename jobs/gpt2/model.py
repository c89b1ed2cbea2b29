"""GPT-2 with random weights and a tokenizer of bytes, or pretrained ones by folder or name."""

from pathlib import Path

import torch

import flstream.client as flare

SIZES = {
    "tiny": {"n_layer": 2, "n_head": 4, "n_embd": 128, "n_positions": 256, "vocab_size": 257},
    "124M": {"n_layer": 12, "n_head": 12, "n_embd": 768},
    "774M": {"n_layer": 36, "n_head": 20, "n_embd": 1280},
}


def get_model(size: str = "tiny", peft: str | None = None, lora_r: int = 8):
    """The model and its tokenizer; with peft = "lora", an adapter of this rank around the base."""
    from transformers import AutoTokenizer

    tokenizer = byte_tokenizer()
    if size not in SIZES:
        tokenizer = pretrained(AutoTokenizer, size)
        tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    if peft is None:
        return get_base(size), tokenizer
    if peft != "lora":
        raise ValueError(f"peft = {peft}: give lora, or leave it out")
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=lora_r, lora_alpha=2 * lora_r, fan_in_fan_out=True)
    return get_peft_model(flare.base_model(), config), tokenizer


def get_base(size: str = "tiny"):
    """The model alone."""
    from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

    if size in SIZES:
        end = byte_tokenizer().eos_token_id
        config = GPT2Config(**SIZES[size], bos_token_id=end, eos_token_id=end, pad_token_id=end)
        return GPT2LMHeadModel(config)
    return pretrained(AutoModelForCausalLM, size, dtype=torch.float32)


def pretrained(kind, name: str, **options):
    """Load from a folder beside this file, or by name from the hub or its cache."""
    folder = Path(__file__).parent / name
    try:
        return kind.from_pretrained(folder if folder.is_dir() else name, **options)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"size = {name}: it is none of {', '.join(SIZES)}, no folder with a model beside "
            f"model.py, and not to be had from the hub or its cache: {error}"
        ) from error


def byte_tokenizer():
    """A tokenizer with a token for each byte, and one for the end of a text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({byte: at for at, byte in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    ends = dict.fromkeys(["bos_token", "eos_token", "pad_token"], "<|endoftext|>")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **ends)
