"""The same job in Python, as NVFlare's tensor-stream example has it: python job.py."""

import argparse

from flstream.recipe import FedAvgRecipe, SimEnv, add_experiment_tracking

parser = argparse.ArgumentParser()
parser.add_argument("--n_clients", type=int, default=2)
parser.add_argument("--num_rounds", type=int, default=2)
parser.add_argument("--size", default="tiny", help="tiny, 124M, 774M, or a folder of weights")
parser.add_argument("--model", help="pretrained weights by name, such as gpt2, in place of a size")
parser.add_argument("--dataset", help="texts by name, such as imdb, in place of docstrings")
parser.add_argument("--max_steps", type=int, help="steps of a round instead of an epoch")
parser.add_argument("--export", metavar="FOLDER", help="write a job folder, and run nothing")
args = parser.parse_args()

recipe = FedAvgRecipe(
    name="gpt2",
    min_clients=args.n_clients,
    num_rounds=args.num_rounds,
    model={"class_path": "model.get_model", "args": {"size": args.model or args.size}},
    train_script="client.py",
    train_args={"max_steps": args.max_steps, "dataset": args.dataset},
    key_metric="eval_loss",
    config={"seed": 7, "train.preload": ["transformers", "trl", "peft", "datasets"]},
)
add_experiment_tracking(recipe, tracking_type="tensorboard")

env = SimEnv(num_clients=args.n_clients)
if args.export:
    print("Job folder:", recipe.export(args.export, env))
else:
    run = recipe.execute(env)
    print(f"Job Status is: {run.get_status()}\nResult can be found in : {run.get_result()}")
