"""Tests of what needs the extras; ``make test-extras`` runs them."""

import os
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

HERE = Path(__file__).parent
# What scripts of others are compared with.
sys.path.insert(0, str(HERE.parent / "moving"))

# Nothing may look for a server of others, and what libraries print about is not what is tested.
os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_CACHE": "",
    "TOKENIZERS_PARALLELISM": "false",
    "POSSIBLE_USER_WARNINGS": "off",
}


class TinyModel(NamedTuple):
    """A folder with a pretrained model and its tokenizer, and one with each site's texts."""

    model: Path
    data: Path


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.extras)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    """A GPT-2 of 40,000 parameters, and texts."""
    from tiny_gpt2 import write_data, write_model

    folder = tmp_path_factory.mktemp("tiny")
    os.environ["HF_DATASETS_CACHE"] = str(folder / "datasets")
    write_model(folder / "model")
    write_data(folder / "data")
    return TinyModel(folder / "model", folder / "data")
