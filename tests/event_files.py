"""Contents of a run's event files, as TensorBoard reads them."""

from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def _read(run: Path, source: str) -> EventAccumulator:
    everything = {"scalars": 0, "tensors": 0}
    accumulator = EventAccumulator(str(run / "tensorboard" / source), size_guidance=everything)
    return accumulator.Reload()


def scalars(run: Path, source: str) -> dict[str, list[tuple[int, float]]]:
    """Steps and values of a source by tag, in the order of the files."""
    events = _read(run, source)
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def texts(run: Path, source: str) -> dict[str, list[tuple[int, str]]]:
    """Steps and texts of a source by tag, in the order of the files."""
    events = _read(run, source)
    return {
        tag: [
            (event.step, event.tensor_proto.string_val[0].decode()) for event in events.Tensors(tag)
        ]
        for tag in events.Tags()["tensors"]
    }
