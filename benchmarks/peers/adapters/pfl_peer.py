"""The job on digits in pfl-research's simulated backend: one process, PyTorch.

python pfl_peer.py CLIENTS ROUNDS [alone]
"""

# mypy: disable-error-code="import-not-found, misc"
# pfl is installed in an environment of its own, where types are not checked.

from __future__ import annotations

import functools
import random
import sys

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.context import CentralContext
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import MinimizeReuseUserSampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from pfl.stats import WeightedStatistics
from softmax import Softmax, site_tensors, train
from task import COHORT, LEARNING_RATE, SPLIT_SEED, STEPS, digits, note, note_digits, note_idle


class ScoredSoftmax(Softmax):
    """The model, with the methods that pfl asks for."""

    def loss(self, images: torch.Tensor, labels: torch.Tensor, eval: bool = False) -> torch.Tensor:
        """The mean of the cross entropies."""
        return torch.nn.functional.cross_entropy(self(images), labels)

    def metrics(
        self, images: torch.Tensor, labels: torch.Tensor, eval: bool = False
    ) -> dict[str, Weighted]:
        """Nothing: no peer evaluates in this race."""
        return {}


class SameTraining(FederatedAveraging):
    """FedAvg whose users train by the code that flstream's clients run, too."""

    def train_one_user(
        self,
        initial_model_state: WeightedStatistics,
        model: PyTorchModel,
        user_dataset: Dataset,
        central_context: CentralContext,
    ) -> tuple[WeightedStatistics, Metrics]:
        """Train, and return the difference, as FederatedAveraging does."""
        train(model.pytorch_model, *user_dataset.raw_data)
        return model.get_model_difference(initial_model_state), Metrics()


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
        return Dataset(raw_data=site_tensors(index), user_id=str(index))

    sites = FederatedDataset(site, MinimizeReuseUserSampler(list(range(clients))))
    module = ScoredSoftmax()
    SameTraining().run(
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
    note_digits(module.weight.detach().numpy(), module.bias.detach().numpy())


def alone(clients: int, rounds: int) -> None:
    """Train without pfl, by a plain loop over the same users: what the training itself takes."""
    torch.set_num_threads(1)
    note_idle()
    module, local, chance = Softmax(), Softmax(), random.Random(SPLIT_SEED)
    for number in range(1, rounds + 1):
        note("round", number=number)
        sums = [torch.zeros_like(parameter) for parameter in module.parameters()]
        for index in chance.sample(range(clients), COHORT):
            local.load_state_dict(module.state_dict())
            train(local, *site_tensors(index))
            for total, parameter in zip(sums, local.parameters(), strict=True):
                total += parameter.detach()
        for total, parameter in zip(sums, module.parameters(), strict=True):
            parameter.data = total / COHORT
    note_digits(module.weight.detach().numpy(), module.bias.detach().numpy())


if __name__ == "__main__":
    (alone if sys.argv[3:] == ["alone"] else main)(int(sys.argv[1]), int(sys.argv[2]))
