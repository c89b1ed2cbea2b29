"""Values that a script tracks, kept for the reference."""

from nvflare.client import log


class SummaryWriter:
    def add_scalar(self, tag, scalar, global_step=None):
        log(tag, scalar, global_step)

    def add_scalars(self, tag, scalars, global_step=None):
        for name, scalar in scalars.items():
            log(f"{tag}/{name}", scalar, global_step)
