"""Job folders of NVFlare become jobs, and a note tells of each setting that does not."""

import json

import pytest
from nvflare_jobs import FOLDERS
from pyhocon import ConfigFactory

from flstream.job import load_job
from flstream.recipe import nvflare_table
from flstream.recipe.nvflare import convert, write_job
from flstream.workflows.registry import BUILT_IN

# What each folder becomes, key by key, and the beginnings of the notes on what is not taken. The
# folder "document" has the configuration of NVFlare's own guide to its downloader.
FOLDERS_BECOME = json.loads(FOLDERS.with_suffix(".json").read_text())
NOT_WHOLE = ("document", "document_native", "unknown_parts")


@pytest.mark.parametrize("name", sorted(path.name for path in FOLDERS.iterdir()))
def test_a_folder_becomes_these_keys_and_notes(nvflare_folders, tmp_path, name):
    conversion = convert(nvflare_folders / name)
    assert conversion.values == FOLDERS_BECOME[name]["values"]
    notes = [note for each in conversion.notes.values() for note in each]
    for note, begin in zip(notes, FOLDERS_BECOME[name]["lost"], strict=True):
        assert note.startswith(begin)
    write_job(conversion, tmp_path / "new")
    text = (tmp_path / "new" / "job.conf").read_text()
    assert ConfigFactory.parse_string(text).as_plain_ordered_dict() == conversion.values
    assert [note for note in notes if f"#     {note}\n" not in text] == []
    if name not in NOT_WHOLE:
        pytest.importorskip("tensorboard")
        load_job(tmp_path / "new" / "job.conf")


def test_workflows_of_the_table_are_those_that_there_are():
    targets = " ".join(nvflare_table.CLASSES.values()).split()
    workflows = {target.partition("=")[2] for target in targets if target.startswith("workflow=")}
    assert len(workflows) == 6
    assert workflows <= BUILT_IN.keys()
