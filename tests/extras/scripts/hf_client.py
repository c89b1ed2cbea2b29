"""In the style of NVFlare's hello-huggingface: a patched SFTTrainer, full or with an adapter."""

import argparse
import os
import random

import nvflare.client.hf as flare
from hf_model import LORA_TARGET_MODULES


def define_parser():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model_name_or_path", type=str, required=True)
    parser.add_argument("--data", type=str, required=True)
    parser.add_argument("--output_dir", type=str, default="./outputs/tiny")
    parser.add_argument("--train_mode", choices=("sft", "peft"), default="peft")
    parser.add_argument("--local_epochs", type=float, default=1.0)
    parser.add_argument("--lora_r", type=int, default=4)
    return parser.parse_args()


def load_jsonl_dataset(path):
    import datasets

    return datasets.load_dataset("json", data_files=path, split="train")


def format_example(example):
    return f"### Instruction:\n{example['instruction']}\n\n### Response:\n{example['output']}"


def make_sft_config(args):
    from trl import SFTConfig

    return SFTConfig(
        output_dir=args.output_dir,
        num_train_epochs=args.local_epochs,
        per_device_train_batch_size=2,
        per_device_eval_batch_size=1,
        gradient_accumulation_steps=2,
        learning_rate=2e-3,
        lr_scheduler_type="linear",
        logging_strategy="steps",
        logging_steps=1,
        save_strategy="epoch",
        save_total_limit=2,
        disable_tqdm=True,
        report_to=[],
        max_length=32,
        bf16=False,
        fp16=False,
        use_cpu=True,
    )


def main():
    args = define_parser()

    import numpy as np
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import SFTTrainer

    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    os.makedirs(args.output_dir, exist_ok=True)

    tokenizer = AutoTokenizer.from_pretrained(args.model_name_or_path)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(args.model_name_or_path, dtype=torch.float32)
    model.config.use_cache = False
    peft_config = None
    if args.train_mode == "peft":
        from peft import LoraConfig, TaskType

        peft_config = LoraConfig(
            r=args.lora_r,
            lora_alpha=16,
            lora_dropout=0.05,
            target_modules=LORA_TARGET_MODULES,
            fan_in_fan_out=True,
            task_type=TaskType.CAUSAL_LM,
        )

    site = f"{args.data}/{flare_site()}"
    trainer = SFTTrainer(
        model=model,
        args=make_sft_config(args),
        train_dataset=load_jsonl_dataset(f"{site}/train.jsonl"),
        eval_dataset=load_jsonl_dataset(f"{site}/valid.jsonl"),
        processing_class=tokenizer,
        formatting_func=format_example,
        peft_config=peft_config,
    )
    flare.patch(trainer)

    while flare.is_running():
        metrics = trainer.evaluate()
        print(f"eval_loss={float(metrics['eval_loss'])}")
        trainer.train()


def flare_site():
    flare.init()
    return flare.get_site_name()


if __name__ == "__main__":
    main()
