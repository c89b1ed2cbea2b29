"""The page on several machines names what there is."""

import re
from pathlib import Path
from typing import get_args

from typer.testing import CliRunner

from flstream.cli.app import app
from flstream.job import job_keys
from flstream.job.engine_section import Engine

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "cluster.md").read_text()


def test_the_table_has_every_engine():
    assert tuple(re.findall(r"^\| `(\w+)` \|", PAGE, flags=re.MULTILINE)) == get_args(Engine)


def test_the_keys_that_the_page_names_are_those_of_a_job_file():
    named = set(re.findall(r"`((?:engine|clients|train)\.\w+)`", PAGE))
    assert len(named) > 3
    assert named <= set(job_keys())


def test_the_options_that_the_page_names_are_those_of_the_commands():
    for command in ("simulate", "join"):
        blocks = re.findall(rf"flstream {command} [^`]*?(?:\n\n|```|&|\n(?=\S))", PAGE)
        assert blocks, command
        for option in set(re.findall(r"--[a-z][a-z-]+", " ".join(blocks))) - {"--ntasks-per-node"}:
            done = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"})
            assert option in done.output, (command, option)
