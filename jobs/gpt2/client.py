"""Fine-tune the received model with TRL on the texts of this site, and score it."""

import argparse
import ast
import sysconfig
from pathlib import Path

import torch
from datasets import Dataset, load_dataset, load_from_disk
from model import get_model
from trl import SFTConfig, SFTTrainer

import flstream.client.hf as flare

parser = argparse.ArgumentParser()
parser.add_argument("--data", help="a data set with a column text, as save_to_disk writes it")
parser.add_argument("--dataset", help="a data set with a column text of the hub, such as imdb")
parser.add_argument("--learning_rate", type=float)
parser.add_argument("--max_steps", type=int, default=-1, help="steps of a round; -1: an epoch")
args = parser.parse_args()


def my_data(site, sites):
    """This site's texts, split into those to train on and those to score with."""
    if args.data:  # a site works in a folder of its own; paths start in that of the job
        data = load_from_disk(Path(flare.system_info()["job_dir"]) / args.data).shard(sites, site)
    elif args.dataset:
        try:
            data = load_dataset(args.dataset, split="train").shard(sites, site)
        except Exception as error:  # of the hub, its client or the cache
            what = f"--dataset {args.dataset} is not to be had from the hub or its cache"
            raise ValueError(f"{what}: {error}") from error
    else:
        files = sorted(Path(sysconfig.get_path("stdlib")).glob("[a-z]*.py"))[site::sites]
        data = Dataset.from_dict({"text": [text for file in files for text in docstrings(file)]})
    return data.train_test_split(0.1, seed=0)


def docstrings(file):
    """The longer docstrings of a file."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    nodes = [node for node in ast.walk(ast.parse(file.read_bytes())) if isinstance(node, kinds)]
    return [text for node in nodes if len(text := ast.get_docstring(node) or "") >= 120]


flare.init()
info = flare.system_info()
model, tokenizer = get_model(**info["model_args"])
data = my_data(info["site_index"], info["clients"])
# The larger ones with the settings of NVFlare's tensor-stream example.
is_tiny = info["model_args"].get("size", "tiny") == "tiny"
settings = SFTConfig(
    output_dir=f"results/{info['site_name']}",
    per_device_train_batch_size=8 if is_tiny else 16,
    gradient_accumulation_steps=1 if is_tiny else 2,
    num_train_epochs=1,
    max_steps=args.max_steps,
    learning_rate=args.learning_rate or (2e-3 if is_tiny else 2e-4),
    lr_scheduler_type="linear" if is_tiny else "cosine",
    loss_type="nll",
    bf16=False,
    fp16=False,
    use_cpu=not torch.cuda.is_available(),
    gradient_checkpointing=not is_tiny,
    max_length=128,
    save_strategy="no",
    logging_steps=1,
    disable_tqdm=True,
    report_to="none",
)
trainer = SFTTrainer(model, settings, None, data["train"], data["test"], tokenizer)
# It then receives before it trains or scores, sends after it, and records the loss of each step.
flare.patch(trainer, stream_metrics=True)

while flare.is_running():
    if flare.is_evaluate():
        trainer.evaluate()
    else:
        trainer.train()
