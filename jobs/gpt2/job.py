"""The job in Python: the same as job.conf, with sizes and adapters to choose from."""

import argparse
import os

from flstream.recipe import (
    FedAvgRecipe,
    SimEnv,
    TensorClientStreamer,
    TensorServerStreamer,
    add_experiment_tracking,
)


def parse_args():
    """Parse the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--n_clients", type=int, default=2)
    parser.add_argument("--num_rounds", type=int, default=2)
    parser.add_argument("--size", default="tiny", help="tiny, 124M, 774M, or a folder of weights")
    parser.add_argument("--peft", choices=["lora"], help="exchange an adapter alone")
    parser.add_argument("--data", help="a data set on disk instead of Python's docstrings")
    parser.add_argument("--max_steps", type=int, help="steps of a round instead of an epoch")
    parser.add_argument("--export", metavar="FOLDER", help="write a job folder, and run nothing")
    return parser.parse_args()


def main():
    """Run the job, or export it."""
    args = parse_args()
    # Sites work in folders of their own, so paths are absolute.
    data = args.data and os.path.abspath(args.data)
    size = os.path.abspath(args.size) if os.path.isdir(args.size) else args.size
    model_args = {"size": size, **({"peft": args.peft} if args.peft else {})}
    recipe = FedAvgRecipe(
        name="gpt2",
        min_clients=args.n_clients,
        num_rounds=args.num_rounds,
        model={"class_path": "model.get_model", "args": model_args},
        train_script="client.py",
        train_args={"data": data, "max_steps": args.max_steps},
        key_metric="eval_loss",
        config={"seed": 7, "train.preload": ["transformers", "trl", "peft", "datasets"]},
    )
    recipe.job.to_server(TensorServerStreamer(), "tensor_server_streamer")
    recipe.job.to_clients(TensorClientStreamer(), "tensor_client_streamer")
    add_experiment_tracking(recipe, tracking_type="tensorboard")

    env = SimEnv(num_clients=args.n_clients)
    if args.export:
        print("Job folder:", recipe.export(args.export, env))
        return
    run = recipe.execute(env)
    print()
    print("Job Status is:", run.get_status())
    print("Result can be found in :", run.get_result())


if __name__ == "__main__":
    main()
