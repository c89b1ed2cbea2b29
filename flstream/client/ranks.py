"""Checks and broadcasts of patched trainers, where a site has several processes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from flstream.client.session import current
from flstream.errors import ClientError

if TYPE_CHECKING:
    import torch


# Launchers' variables for rank and number of ranks: torchrun, Open MPI, MPICH, Slurm.
_VARIABLES = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)
INHERITED = (
    *(name for pair in _VARIABLES[:3] for name in pair),
    *("LOCAL_RANK", "LOCAL_WORLD_SIZE", "SLURM_PROCID"),
)
"""Variables that a command must not find, as they would be of a launcher of flstream itself."""


class RankPlace(NamedTuple):
    """Number of a process, from 0, and how many processes its site has."""

    rank: int = 0
    ranks: int = 1

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> RankPlace:
        """Return the place that a launcher's variables name; one process without any."""
        for rank, ranks in _VARIABLES:
            if environment.get(rank, "").isdecimal():
                number, count = int(environment[rank]), environment.get(ranks, "")
                return cls(number, max(int(count) if count.isdecimal() else 1, number + 1))
        return cls()

    def check(self, rank: str | int | None) -> None:
        """Compare the place with the rank that a script passes to ``init``, if any.

        Raises:
            ClientError: They differ.
        """
        if rank is not None and str(rank).strip() != str(self.rank):
            raise ClientError(
                f"init() was given rank {rank}, and this process is rank {self.rank} of "
                f"{self.ranks}; give it the number that the launcher of train.command gives, as "
                "torchrun does in RANK, or leave it out"
            )


def is_first_rank() -> bool:
    """Return whether this process has the site's tasks, models and files, as rank 0."""
    return current().turns.place.rank == 0


def check_processes(count: int, start: str) -> None:
    """Compare a trainer's number of processes with the site's."""
    ranks = current().turns.place.ranks
    if count != ranks:
        raise ClientError(
            f"the trainer has {count} process{'es' if count != 1 else ''}, and this site has "
            f"{ranks}; {start}, or have train.command start as many, as with "
            "torchrun --nproc_per_node"
        )


def broadcast(tensors: Iterable[torch.Tensor]) -> None:
    """Give all ranks the tensors of rank 0, in place, a tensor at a time.

    All ranks call it with tensors of the same dtypes and shapes, in the same order. Where there is
    one process it does nothing.

    Raises:
        ClientError: The ranks are not connected.
    """
    if current().turns.place.ranks == 1:
        return
    import torch
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        raise ClientError(
            "the processes of train.command are not connected, so rank 0 cannot give the others "
            "the model; have the trainer train in several processes, or start one"
        )
    done = set()
    with torch.no_grad():
        for tensor in tensors:
            if tensor.data_ptr() in done or not tensor.numel():
                continue  # tied to another one, or empty
            done.add(tensor.data_ptr())
            whole = tensor.detach().contiguous()
            # As bytes, since not each backend knows each dtype.
            dist.broadcast(whole.reshape(-1).view(torch.uint8), src=0)
            if whole.data_ptr() != tensor.data_ptr():
                tensor.copy_(whole)
