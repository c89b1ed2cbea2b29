"""The model and its tokenizer: GPT-2 with random weights, or a folder of pretrained ones."""

import hashlib
import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import torch
from corpus import PACKAGES, texts

SIZES = {
    "tiny": {"n_layer": 2, "n_head": 4, "n_embd": 128, "n_positions": 256, "vocab_size": 2000},
    "124M": {"n_layer": 12, "n_head": 12, "n_embd": 768},
    "774M": {"n_layer": 36, "n_head": 20, "n_embd": 1280},
}
END = "<|endoftext|>"
VOCABULARY = 2000
HERE = Path(__file__).resolve().parent
CACHE = HERE / ".cache"


def get_model(size: str = "tiny", peft: str | None = None, lora_r: int = 8):
    """Make the model, and load its tokenizer.

    Args:
        size: tiny, 124M or 774M, with random weights; or a folder that save_pretrained has written,
            from the folder of this file.
        peft: "lora" to train and exchange an adapter alone.
        lora_r: Rank of the adapter.

    Returns:
        The model and the tokenizer.
    """
    if size in SIZES:
        tokenizer = get_tokenizer()
        model = random_model(size, tokenizer)
    elif (folder := HERE / size).is_dir():
        from transformers import AutoModelForCausalLM, AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(folder)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    else:
        raise ValueError(f"size = {size}: give {', '.join(SIZES)}, or a folder with a model")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    if peft is not None:
        model = with_adapter(model, peft, lora_r)
    return model, tokenizer


def random_model(size, tokenizer):
    """A GPT-2 of a size with the same random weights wherever it is made."""
    from transformers import GPT2Config, GPT2LMHeadModel

    end = tokenizer.eos_token_id
    config = GPT2Config(**SIZES[size], bos_token_id=end, eos_token_id=end, pad_token_id=end)
    # The base of an adapter is not exchanged, so each site has to make the same one.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return GPT2LMHeadModel(config)


def with_adapter(model, peft, lora_r):
    """The model with a LoRA adapter (Hu et al. 2021, arXiv:2106.09685)."""
    from peft import LoraConfig, TaskType, get_peft_model

    if peft != "lora":
        raise ValueError(f"peft = {peft}: give lora, or leave it out")
    config = LoraConfig(
        r=lora_r,
        lora_alpha=2 * lora_r,
        target_modules=["c_attn"],
        fan_in_fan_out=True,
        task_type=TaskType.CAUSAL_LM,
    )
    return get_peft_model(model, config)


def get_tokenizer():
    """The tokenizer, trained by the first process of the job that asks for it."""
    from filelock import FileLock
    from transformers import PreTrainedTokenizerFast

    path = cache() / f"tokenizer-{key()}.json"
    with FileLock(f"{path}.lock"):
        if not path.exists():
            train_tokenizer(path)
    return PreTrainedTokenizerFast(
        tokenizer_file=str(path), bos_token=END, eos_token=END, pad_token=END
    )


def train_tokenizer(path):
    """Train a byte-level BPE on the texts of all packages, and write it to a file."""
    from tokenizers import ByteLevelBPETokenizer

    bpe = ByteLevelBPETokenizer()
    corpus = (text for package in PACKAGES for text in texts(package))
    bpe.train_from_iterator(
        corpus, vocab_size=VOCABULARY, special_tokens=[END], show_progress=False
    )
    scratch = path.with_suffix(".new")
    bpe.save(str(scratch))
    os.replace(scratch, path)


def key():
    """What the tokenizer depends on, as a short name: the packages' files, and the settings."""
    facts = (
        f"{sys.version} {PACKAGES} {VOCABULARY} {Path(__file__).with_name('corpus.py').read_text()}"
    )
    return hashlib.sha256(facts.encode()).hexdigest()[:12]


def cache():
    """The folder for the tokenizer: beside this file, or, where that cannot be written, another."""
    with suppress(OSError):
        CACHE.mkdir(exist_ok=True)
    if os.access(CACHE, os.W_OK):
        return CACHE
    folder = Path(tempfile.gettempdir()) / f"flstream-gpt2-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder
