"""GPT-2 with random weights and a tokenizer of bytes, or a folder of pretrained ones."""

from pathlib import Path

import torch

SIZES = {
    "tiny": {"n_layer": 2, "n_head": 4, "n_embd": 128, "n_positions": 256, "vocab_size": 257},
    "124M": {"n_layer": 12, "n_head": 12, "n_embd": 768},
    "774M": {"n_layer": 36, "n_head": 20, "n_embd": 1280},
}


def get_model(size: str = "tiny", peft: str | None = None, lora_r: int = 8):
    """The model and its tokenizer; with peft = "lora", an adapter of this rank around the model."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel

    if size in SIZES:
        tokenizer = byte_tokenizer()
        end = tokenizer.eos_token_id
        config = GPT2Config(**SIZES[size], bos_token_id=end, eos_token_id=end, pad_token_id=end)
        # The base of an adapter is not exchanged, so each site has to make the same one.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = GPT2LMHeadModel(config)
    elif (folder := Path(__file__).parent / size).is_dir():
        tokenizer = AutoTokenizer.from_pretrained(folder)
        tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    else:
        raise ValueError(f"size = {size}: give {', '.join(SIZES)}, or a folder with a model")
    if peft == "lora":
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(
            model, LoraConfig(r=lora_r, lora_alpha=2 * lora_r, fan_in_fan_out=True)
        )
    elif peft:
        raise ValueError(f"peft = {peft}: give lora, or leave it out")
    return model, tokenizer


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
