"""In the style of hello-numpy: an array that grows, and its mean as the metric."""

import argparse

import numpy as np
import nvflare.client as flare
from nvflare.app_common.np.constants import NPConstants

parser = argparse.ArgumentParser()
parser.add_argument("--update_type", choices=["full", "diff"], default="full")
args = parser.parse_args()
flare.init()
site = flare.system_info()["site_name"]
while flare.is_running():
    received = flare.receive()
    print(f"site={site}, round={received.current_round}")
    array, kind = received.params[NPConstants.NUMPY_KEY], flare.ParamsType.FULL
    trained, metrics = array + np.random.rand(*array.shape), {"weight_mean": np.mean(array)}
    if args.update_type == "diff":
        trained, kind = trained - array, flare.ParamsType.DIFF
    params = {NPConstants.NUMPY_KEY: trained}
    flare.send(flare.FLModel(params=params, params_type=kind, metrics=metrics))
