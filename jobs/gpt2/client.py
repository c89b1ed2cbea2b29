"""What each site does: fine-tune the received model with TRL, and score it."""

import argparse
from pathlib import Path

from model import get_model
from trainer import get_dataset, get_training_arguments, make_trainer, preprocess
from transformers import TrainerCallback

import flstream.client.hf as flare
from flstream.client.tracking import SummaryWriter


class LossWriter(TrainerCallback):
    """Writes the loss of each step for the report and for TensorBoard."""

    def __init__(self):
        self.writer = SummaryWriter()

    def on_log(self, args, state, control, logs=None, **_):
        """Write the loss of a step; at the end of a training there is none."""
        if "loss" in logs:
            self.writer.add_scalar("loss", logs["loss"], state.global_step)


def main():
    """Train or score, task after task."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", help="a data set on disk; see get_dataset in trainer.py")
    parser.add_argument("--learning_rate", type=float, default=2e-3)
    parser.add_argument("--max_steps", type=int, default=-1, help="steps of a round; -1: an epoch")
    args = parser.parse_args()

    flare.init()
    info = flare.system_info()
    model, tokenizer = get_model(**info["model_args"])
    # A site works in a folder of its own; paths start in that of the job.
    data = args.data and str(Path(info["job_dir"]) / args.data)
    dataset = get_dataset(info["site_index"], info["clients"], data)
    arguments = get_training_arguments(flare.get_site_name(), args.learning_rate, args.max_steps)
    trainer = make_trainer(model, tokenizer, preprocess(dataset, tokenizer), arguments)
    trainer.add_callback(LossWriter())
    flare.patch(trainer)  # receives before it trains or scores, and sends after it

    while flare.is_running():
        if flare.is_evaluate():
            trainer.evaluate()
        else:
            trainer.train()


if __name__ == "__main__":
    main()
