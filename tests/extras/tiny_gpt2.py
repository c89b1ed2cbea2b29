"""A tiny GPT-2 with a tokenizer and texts, written as ``save_pretrained`` writes them."""

import json
from pathlib import Path

SITES = ("site-1", "site-2")
_WORDS = ("add", "subtract", "multiply", "divide", "count", "sort", "reverse", "repeat")


def texts(site, count, offset=0):
    """Instructions with answers, of a site's own."""
    start = offset + SITES.index(site) * 1000
    for number in range(start, start + count):
        word = _WORDS[number * 7 % len(_WORDS)]
        yield {"instruction": f"{word} {number} and {number * 3}", "output": f"{word}: {number}"}


def write_data(folder: Path) -> None:
    """Write each site's texts, to train on and to score with."""
    for site in SITES:
        (folder / site).mkdir(parents=True)
        for name, count, offset in (("train", 14, 0), ("valid", 4, 500)):
            lines = [json.dumps(each) for each in texts(site, count, offset)]
            (folder / site / f"{name}.jsonl").write_text("\n".join(lines) + "\n")


def write_model(folder: Path, **size: int) -> None:
    """Write a GPT-2 with random weights and a tokenizer trained on the texts."""
    import torch
    from tokenizers import ByteLevelBPETokenizer
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    bpe = ByteLevelBPETokenizer()
    lines = [
        f"{each['instruction']} {each['output']}" for site in SITES for each in texts(site, 50)
    ]
    bpe.train_from_iterator(lines, vocab_size=400, special_tokens=["<|endoftext|>"])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe._tokenizer, eos_token="<|endoftext|>", bos_token="<|endoftext|>"
    )
    torch.manual_seed(3)
    config = GPT2Config(
        **{"vocab_size": 400, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 2, **size},
        bos_token_id=0,
        eos_token_id=0,
    )
    GPT2LMHeadModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
