"""A killed run that is damaged resumes to the table's bits, or is refused and left as it was."""

import re
import shutil
from itertools import product

import pytest
from journal_support import flip
from kill_points import run_killed
from matrix_draw import drawn
from matrix_runs import overrides_of, recorded, run

from flstream.errors import UsageError

DAMAGED = ("fedavg", "scaffold", "cyclic", "swarm", "fedper", "stages", "fedadam", "topk up")
FOREIGN = ("notes.txt", "checkpoints/notes.txt", "sites/site-1/state/notes.txt")
"""Files that no run makes: they outlive whatever a resume clears away."""


def newest(folder, pattern, count=1):
    # A round's last model has two names; damaged by both, it would be as it was.
    files = {path.stat().st_ino: path for path in folder.glob(pattern)}.values()
    paths = sorted(files, key=lambda path: path.stat().st_mtime_ns)[-count:]
    assert len(paths) == count, "there is nothing to damage"
    return paths


def flip_newest(pattern, count=1):
    return lambda folder: [flip(path) for path in newest(folder, pattern, count)]


def cut_journal(folder):
    journal = folder / "events.jsonl"
    content = journal.read_bytes()
    journal.write_bytes(content[: len(content) // 2])


def remove_newest(pattern):
    return lambda folder: [shutil.rmtree(path) for path in newest(folder, pattern)]


DAMAGES = {
    "a byte of the newest model": flip_newest("checkpoints/round-*.safetensors"),
    "a byte of the two newest models": flip_newest("checkpoints/round-*.safetensors", 2),
    "a byte of the newest state": flip_newest("sites/site-1/state/effect-*/kept.json"),
    "half of the journal gone": cut_journal,
    "the newest state gone": remove_newest("sites/site-1/state/effect-*"),
    "all states of a site gone": remove_newest("sites/site-1/state"),
}
OF_MODELS = ["a byte of the newest model", "a byte of the two newest models"]
REFUSED = {*product(DAMAGED, [*OF_MODELS, "all states of a site gone"])}
MAY_BE_REFUSED = {*product(DAMAGED, ["a byte of the newest state", "the newest state gone"])}
"""The newest state is needed unless the site was killed after it had trained once more."""
CASES = list(product(DAMAGED, DAMAGES))


def files_of(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.kills
@pytest.mark.parametrize("case", drawn(CASES, len(DAMAGED), 1), ids=", ".join)
def test_a_damaged_run_resumes_to_the_bits_of_the_table_or_is_left_as_it_was(
    case, tmp_path, fork_server
):
    row, damage = case
    folder, overrides = tmp_path / "run", overrides_of(row, "tiny")
    assert run_killed(folder, overrides, "training", 5, "server")
    DAMAGES[damage](folder)
    for name in FOREIGN:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("not of the run\n")
    before = files_of(folder)
    refusal = None
    try:
        assert run(folder, overrides, resume=True) == recorded(f"{row}, tiny")
    except UsageError as error:
        refusal = str(error)
    assert case in MAY_BE_REFUSED or (refusal is not None) == (case in REFUSED), refusal
    if refusal is not None:
        assert "\n" not in refusal
        assert files_of(folder) == before
        if (whole := re.search(r"--from-round (\d+)", refusal)) is not None:
            again = run(folder, overrides, resume=True, from_round=int(whole[1]))
            assert again == recorded(f"{row}, tiny")
        assert whole is not None or damage != OF_MODELS[0]
    assert all((folder / name).exists() for name in FOREIGN)
