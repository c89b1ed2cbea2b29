"""In the style of hello-numpy: an array that grows, and its mean as the metric."""

import argparse

import numpy as np
import nvflare.client as flare
from nvflare.app_common.np.constants import NPConstants
from nvflare.client.tracking import SummaryWriter


def train(array):
    return array + np.random.rand(*array.shape)


def evaluate(array):
    return {"weight_mean": np.mean(array)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--update_type", choices=["full", "diff"], default="full")
    args = parser.parse_args()
    flare.init()
    site = flare.system_info()["site_name"]
    writer = SummaryWriter()
    while flare.is_running():
        received = flare.receive()
        print(f"site={site}, round={received.current_round}")
        array = received.params[NPConstants.NUMPY_KEY]
        metrics = evaluate(array)
        trained = train(array)
        writer.add_scalar("weight_mean", metrics["weight_mean"], received.current_round)
        kind = flare.ParamsType.FULL
        if args.update_type == "diff":
            trained, kind = trained - array, flare.ParamsType.DIFF
        answer = flare.FLModel(
            params={NPConstants.NUMPY_KEY: trained},
            params_type=kind,
            metrics=metrics,
            current_round=received.current_round,
        )
        flare.send(answer)


if __name__ == "__main__":
    main()
