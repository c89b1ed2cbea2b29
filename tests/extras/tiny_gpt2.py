"""A tiny GPT-2 as ``save_pretrained`` writes it, and what is made of it in processes of a test."""

from pathlib import Path

_TEXTS = [f"add {number} and {number * 3}: {number * 4}" for number in range(100)]


def write_model(folder: Path) -> None:
    """Write a GPT-2 with random weights and a tokenizer trained on the texts."""
    import torch
    from tokenizers import ByteLevelBPETokenizer
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator(_TEXTS, vocab_size=400, special_tokens=["<|endoftext|>"])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe._tokenizer, eos_token="<|endoftext|>", bos_token="<|endoftext|>"
    )
    torch.manual_seed(3)
    size = {"vocab_size": 400, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 2}
    config = GPT2Config(**size, bos_token_id=0, eos_token_id=0)
    GPT2LMHeadModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def opens(folder, final, has_tokenizer):
    """An export opens with ``from_pretrained``, and computes what the run's model does."""
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2LMHeadModel

    opened = AutoModelForCausalLM.from_pretrained(folder).eval()
    known = GPT2LMHeadModel(opened.config).eval()
    # A module around it has a name for it, and a file may have a tied tensor once.
    state = {name.removeprefix("model."): tensor for name, tensor in load_file(final).items()}
    other = known.load_state_dict(state, strict=False)
    tied = {"lm_head.weight", "transformer.wte.weight"}
    assert other.unexpected_keys == []
    assert {*other.missing_keys} < tied
    tokens = torch.arange(12).reshape(2, 6)
    assert torch.equal(opened(tokens).logits, known(tokens).logits)
    assert opened.lm_head.weight is opened.transformer.wte.weight
    assert opened.generation_config.eos_token_id == opened.config.eos_token_id
    if has_tokenizer:
        assert AutoTokenizer.from_pretrained(folder)("add 3").input_ids


def opens_adapter(folder, base, final):
    """An exported adapter opens in PEFT with the trained tensors."""
    import torch
    from peft import PeftModel, get_peft_model_state_dict
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), folder)
    state, wanted = get_peft_model_state_dict(model), load_file(final)
    assert state.keys() == wanted.keys()
    assert all(torch.equal(state[name], wanted[name]) for name in wanted)
