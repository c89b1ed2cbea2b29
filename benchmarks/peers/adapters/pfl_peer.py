"""The job on digits in pfl-research's simulated backend: one process, PyTorch.

python pfl_peer.py CLIENTS ROUNDS
"""

# mypy: disable-error-code="import-not-found, misc"
# pfl is installed in an environment of its own, where types are not checked.

from __future__ import annotations

import functools
import sys

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import MinimizeReuseUserSampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from task import COHORT, LEARNING_RATE, STEPS, digits, note, note_idle, site_digits, wrong_digits


class Softmax(torch.nn.Module):
    """The model of jobs/virtual, with the methods that pfl asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(64, 10))
        self.bias = torch.nn.Parameter(torch.zeros(10))

    def loss(self, images: torch.Tensor, labels: torch.Tensor, eval: bool = False) -> torch.Tensor:
        """The mean of the cross entropies."""
        return torch.nn.functional.cross_entropy(images @ self.weight + self.bias, labels)

    def metrics(
        self, images: torch.Tensor, labels: torch.Tensor, eval: bool = False
    ) -> dict[str, Weighted]:
        """Nothing: no peer evaluates in this race."""
        return {}


class RoundNotes(TrainingProcessCallback):
    """Notes when a round begins: the first with the training, the others when one has ended."""

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        """Note the first."""
        note("round", number=1)
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """Note the next."""
        note("round", number=central_iteration + 2)
        return False, Metrics()


def main(clients: int, rounds: int) -> None:
    """Train, and check the model."""
    # For a model as small as this one, threads cost more than they bring.
    torch.set_num_threads(1)
    note_idle()
    digits()

    @functools.cache
    def site(index: int) -> Dataset:
        # Kept, as flstream's job keeps each site's digits for as long as its process lives.
        images, labels = (torch.from_numpy(array) for array in site_digits(index))
        return Dataset(raw_data=(images, labels), user_id=str(index))

    sites = FederatedDataset(site, MinimizeReuseUserSampler(list(range(clients))))
    module = Softmax()
    FederatedAveraging().run(
        backend=SimulatedBackend(training_data=sites, val_data=sites),
        model=PyTorchModel(
            model=module,
            local_optimizer_create=torch.optim.SGD,
            # What comes of a round is its mean, as in plain FedAvg.
            central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
        ),
        model_train_params=NNTrainHyperParams(
            local_num_epochs=STEPS,
            local_learning_rate=LEARNING_RATE,
            local_batch_size=None,
        ),
        # The cohort is evaluated in the first round alone; that round is not counted.
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=rounds,
            train_cohort_size=COHORT,
            val_cohort_size=None,
        ),
        callbacks=[RoundNotes()],
    )
    wrong = wrong_digits(module.weight.detach().numpy(), module.bias.detach().numpy())
    note("result", wrong=wrong)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
