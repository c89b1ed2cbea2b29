"""Data and training arguments, for sites and for training alone: ``python trainer.py``."""

import argparse
from pathlib import Path

import torch
from corpus import packages_of, texts
from model import get_model

MAX_LENGTH = 128
TEST_SHARE = 0.1


def get_dataset(index: int = 0, count: int = 1, data: str | None = None):
    """Load the texts of one site of so many, split into train and test.

    Args:
        index: The site's place among all sites, from 0.
        count: Number of sites.
        data: Path of a data set with a column text: a folder that save_to_disk has written, or a
            .jsonl, .csv, .parquet or .txt file. None for docstrings, by package.
    """
    import datasets

    if data is None:
        mine = [text for package in packages_of(index, count) for text in texts(package)]
        whole = datasets.Dataset.from_dict({"text": mine})
    else:
        whole = load_data(Path(data))
        if "text" not in whole.column_names or len(whole) < 2 * count:
            raise ValueError(
                f"--data {data} has {len(whole)} rows and the columns {whole.column_names}: it "
                f"needs a column text, and at least {2 * count} rows"
            )
        whole = whole.shard(count, index)
    return whole.train_test_split(TEST_SHARE, seed=0)


def load_data(path: Path):
    """Load a data set on disk."""
    import datasets

    if path.is_dir():
        loaded = datasets.load_from_disk(str(path))
        return loaded["train"] if isinstance(loaded, datasets.DatasetDict) else loaded
    kinds = {
        ".jsonl": "json",
        ".json": "json",
        ".csv": "csv",
        ".parquet": "parquet",
        ".txt": "text",
    }
    if path.suffix not in kinds or not path.exists():
        raise ValueError(f"--data {path}: give a folder, or a {', '.join(kinds)} file")
    return datasets.load_dataset(kinds[path.suffix], data_files=str(path), split="train")


def preprocess(dataset, tokenizer, max_length: int = MAX_LENGTH):
    """Tokenize texts, and cut them off after max_length tokens."""

    def tokenize(batch):
        texts = [f"{text}{tokenizer.eos_token}" for text in batch["text"]]
        return tokenizer(texts, truncation=True, max_length=max_length)

    return dataset.map(tokenize, batched=True, remove_columns=dataset["train"].column_names)


def get_training_arguments(client_name: str, learning_rate: float = 2e-3, max_steps: int = -1):
    """Return the arguments of TRL's trainer, which sites and training alone share."""
    from trl import SFTConfig

    return SFTConfig(
        per_device_train_batch_size=8,
        per_device_eval_batch_size=8,
        gradient_accumulation_steps=2,
        num_train_epochs=1,
        max_steps=max_steps,
        fp16=False,
        bf16=False,
        learning_rate=learning_rate,
        loss_type="nll",
        lr_scheduler_type="cosine",
        gradient_checkpointing=False,
        max_length=MAX_LENGTH,
        output_dir=f"./results/{client_name}",
        save_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
        report_to="none",
        use_cpu=not torch.cuda.is_available(),
    )


def make_trainer(model, tokenizer, dataset, arguments):
    """Make TRL's trainer of tokenized texts."""
    from trl import SFTTrainer

    return SFTTrainer(
        model=model,
        args=arguments,
        train_dataset=dataset["train"],
        eval_dataset=dataset["test"],
        processing_class=tokenizer,
    )


def train(size: str = "tiny", peft: str | None = None, data: str | None = None):
    """Train on all texts, without a federation, and print the loss."""
    model, tokenizer = get_model(size, peft)
    dataset = preprocess(get_dataset(data=data), tokenizer)
    trainer = make_trainer(model, tokenizer, dataset, get_training_arguments("alone"))
    trainer.train()
    print(f"eval_loss = {trainer.evaluate()['eval_loss']:.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", default="tiny")
    parser.add_argument("--peft", choices=["lora"])
    parser.add_argument("--data")
    train(**vars(parser.parse_args()))
