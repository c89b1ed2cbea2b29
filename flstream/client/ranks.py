"""Checks and broadcasts of patched trainers, where a site has several processes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from flstream.client.session import current
from flstream.errors import ClientError

if TYPE_CHECKING:
    import torch


def is_first_rank() -> bool:
    """Return whether this process has the site's tasks, models and files: rank 0, or the one."""
    return current().place.rank == 0


def check_processes(count: int, start: str) -> None:
    """Compare the number of processes that a trainer takes part in with that of the site.

    Args:
        count: The trainer's number of processes.
        start: How the trainer is set up for as many as there are, for the message.

    Raises:
        ClientError: They differ.
    """
    ranks = current().place.ranks
    if count != ranks:
        raise ClientError(
            f"the trainer has {count} process{'es' if count != 1 else ''}, and this site has "
            f"{ranks}; {start}, or have train.command start as many, as with "
            "torchrun --nproc_per_node"
        )


def broadcast(tensors: Iterable[torch.Tensor]) -> None:
    """Give all ranks the tensors that rank 0 has, in place, a tensor at a time.

    All ranks call it with tensors of the same dtypes and shapes, in the same order. Where there is
    one process it does nothing.

    Raises:
        ClientError: The ranks are not connected.
    """
    if current().place.ranks == 1:
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
