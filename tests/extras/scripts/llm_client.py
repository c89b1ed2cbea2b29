"""In the style of NVFlare's llm_hf: a loop by hand, with the trainer's own checkpoints."""

import argparse
import copy
import random
import shutil

import datasets
import numpy as np
import nvflare.client as flare
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback, trainer_utils
from trl import SFTConfig, SFTTrainer


class StopCallback(TrainerCallback):
    def on_epoch_end(self, args, state, control, logs=None, **kwargs):
        control.should_training_stop = True


torch.manual_seed(0)
random.seed(0)
np.random.seed(0)


def format_instruction(example):
    return f"### Instruction: {example['instruction']} ### Response: {example['output']}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model_name_or_path", type=str, required=True)
    parser.add_argument("--data", type=str, required=True)
    parser.add_argument("--output_path", type=str, default="./workspace_federated/tiny")
    parser.add_argument("--message_mode", type=str, default="numpy")
    parser.add_argument("--local_epoch", type=int, default=1)
    parser.add_argument("--num_rounds", type=int, default=2)
    args = parser.parse_args()

    flare.init(rank=0)
    try:
        shutil.rmtree(args.output_path)
    except FileNotFoundError:
        print(f"Output path {args.output_path} does not exist, skipping removal.")

    site = f"{args.data}/{flare.get_site_name()}"
    dataset_train = datasets.load_dataset("json", data_files=f"{site}/train.jsonl", split="train")
    dataset_valid = datasets.load_dataset("json", data_files=f"{site}/valid.jsonl", split="train")
    model = AutoModelForCausalLM.from_pretrained(
        args.model_name_or_path, use_cache=False, dtype=torch.bfloat16
    )
    tokenizer = AutoTokenizer.from_pretrained(args.model_name_or_path)
    tokenizer.pad_token = tokenizer.eos_token
    train_args = SFTConfig(
        output_dir=args.output_path,
        num_train_epochs=args.local_epoch * args.num_rounds,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        gradient_checkpointing=True,
        gradient_checkpointing_kwargs={"use_reentrant": False},
        optim="adamw_torch",
        logging_steps=2,
        save_strategy="epoch",
        learning_rate=5e-3,
        bf16=True,
        use_cpu=True,
        max_grad_norm=0.3,
        lr_scheduler_type="constant",
        disable_tqdm=True,
        max_length=32,
        save_total_limit=2,
        seed=0,
        data_seed=0,
        dataloader_pin_memory=False,
        report_to=[],
    )
    trainer = SFTTrainer(
        model=model,
        train_dataset=dataset_train,
        eval_dataset=dataset_valid,
        processing_class=tokenizer,
        formatting_func=format_instruction,
        args=train_args,
        callbacks=[StopCallback()],
    )

    while flare.is_running():
        input_model = flare.receive(timeout=600)
        if input_model is None:
            break
        curr_round = input_model.current_round
        global_model = copy.deepcopy(input_model.params)
        for key in list(global_model.keys()):
            global_model[key.replace("model.", "", 1)] = global_model.pop(key)
        trainer.model.load_state_dict(global_model)

        eval_loss = float(trainer.evaluate()["eval_loss"])
        print(f"Global model eval_loss: {eval_loss}")

        if curr_round == 0:
            for epoch in range(args.local_epoch):
                if epoch == 0:
                    trainer.train()
                else:
                    trainer.train(resume_from_checkpoint=True)
        else:
            checkpoint = trainer_utils.get_last_checkpoint(trainer.args.output_dir)
            trainer.model.save_pretrained(checkpoint, state_dict=global_model)
            for _ in range(args.local_epoch):
                trainer.train(resume_from_checkpoint=True)

        out_param = trainer.model.state_dict()
        for key in list(out_param.keys()):
            out_param["model." + key] = out_param.pop(key).cpu()
        if args.message_mode.lower() == "numpy":
            out_param = {k: v.to(torch.float32) for k, v in out_param.items()}
        flare.send(
            flare.FLModel(
                params=out_param,
                metrics={"eval_loss": eval_loss, "neg_eval_loss": -eval_loss},
                meta={"NUM_STEPS_CURRENT_ROUND": trainer.train_dataset.num_rows},
            )
        )


if __name__ == "__main__":
    main()
