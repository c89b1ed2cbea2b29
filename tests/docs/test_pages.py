"""What the pages say is so: links, keys, options, tables, sentences, and code that is shown."""

import re
from dataclasses import fields
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from support import body_of
from typer.testing import CliRunner

import flstream
from flstream.bench.cases import CODECS, MODES, make_plan
from flstream.bench.measuring import Figures
from flstream.cli.app import app
from flstream.filters.block import Passage
from flstream.filters.chain import filtered
from flstream.job import Job, load_job
from flstream.job import codecs as codec_sections
from flstream.job import filters as filter_sections
from flstream.job.sections import Engine
from flstream.job.stage import find_workflow
from flstream.model.memory import MemoryBody
from flstream.workflows.registry import BUILT_IN

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text()
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
}
JOB = """
name = page, rounds = 1, clients { count = 3 }, train { script = client.py }
model { factory = "model:build" }
"""


def page(name: str) -> str:
    return PAGES[f"docs/{name}.md"]


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as they are made of them where pages are shown."""
    heads = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S), re.M)
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", head).lower() for head in heads)
    return {re.sub(r"[^\w\- ]", "", head).strip().replace(" ", "-") for head in plain}


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere_and_options_are_those_of_the_commands(name):
    text = PAGES[name]
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not target.startswith("http"):
            path, _, anchor = target.partition("#")
            there = (ROOT / name).parent / path if path else ROOT / name
            assert there.exists(), target
            if anchor:
                assert anchor in anchors(there.read_text()), target
    for command, words in re.findall(r"\bflstream (\w+)((?: [^`|&#\n]*)?)", text):
        options = re.findall(r"(?<=\s)--[a-z][a-z-]+", words)
        if options and command in HELP:
            assert [each for each in options if each not in HELP[command]] == [], command


HELP = {
    command.callback.__name__: CliRunner()
    .invoke(app, [command.name or command.callback.__name__, "--help"], env={"COLUMNS": "200"})
    .output
    for command in app.registered_commands
    if command.callback is not None
}
# Attributes of what a script receives, and files.
OTHERS = ("model.current_round", "model.total_rounds", "model.m", "model.p", "model.safetensors")


@pytest.mark.parametrize("name", PAGES)
def test_keys_that_a_page_names_are_those_of_a_job_file(name):
    text = page("reference/job")
    entries = set(re.findall(r"^- \*\*`(.*?)`\*\* \(", text, flags=re.MULTILINE))
    sections = {key.partition(".")[0] for key in entries if "." in key}
    spans = re.findall(r"`(?:--set )?([a-z_]+(?:\.[a-z_0-9]+)+)(?: ?= [^`]*)?`", PAGES[name])
    keys = {each for each in spans if each.partition(".")[0] in sections}
    free = ("train.args.", "model.args.", "workflow.args.", "clients.args.")
    unknown = {each for each in keys - entries if not each.startswith((*free, *OTHERS))}
    parents = {".".join(each.split(".")[:n]) for each in entries for n in (1, 2)}
    assert unknown - parents == set()


def loaded(folder: Path, text: str, **files: str) -> Job:
    shown = {"client.py": "import flstream.client as flare\n", "model.py": "Net = build = dict\n"}
    for name, content in {**shown, **files, "job.conf": text}.items():
        (folder / name).write_text(content)
    return load_job(folder / "job.conf")


def test_sections_that_pages_show_mean_what_they_say(tmp_path):
    codecs = blocks(page("codecs"), "hocon")[0]
    coded = loaded(tmp_path, JOB + codecs).streaming.codecs
    assert [each.type for each in coded.up] == ["topk", "shuffle", "zstd"]
    chain = blocks(page("filters"), "hocon")[0]
    assert [each.type for each in loaded(tmp_path, JOB + chain).filters.up][-1] == "gaussian"
    [links], [trace] = (blocks(page("network"), kind) for kind in ("hocon", "csv"))
    trace = trace.partition("\n")[2]  # below the name of the file
    job = loaded(tmp_path, JOB + links, **{"links.csv": trace})
    found = job.network.links(job.clients.site_names, job.seed)
    assert (found["site-1"].period, found["site-1"].trace[1].up) == (3, 7e6)
    assert found["site-3"].latency == 0.05


def test_the_filter_of_ones_own_on_its_page_works(tmp_path):
    [own] = blocks(page("filters"), "python")
    line = blocks(page("filters"), "hocon")[1]
    specs = loaded(tmp_path, JOB + line, **{"signs.py": own}).filters.up
    source = filtered(MemoryBody.of({"w": np.ones(9)}), specs, Passage("site-1", 1, "up", 3))
    assert set(np.abs(np.frombuffer(body_of(source)))) == {0.001}


def test_tables_have_whatever_there_is():
    def rows(name: str) -> set[str]:
        return set(re.findall(r"^\| `(\w+)[ `]", page(name), flags=re.MULTILINE))

    assert rows("filters") == set(filter_sections.BUILT_IN)
    assert rows("codecs") >= set(codec_sections.BUILT_IN)
    workflows = re.findall(r"^\| `(\w+)`", page("workflows").partition("## ")[0], re.MULTILINE)
    assert set(workflows) == set(BUILT_IN)
    assert {*workflows} <= anchors(page("workflows"))
    assert rows("cluster") == set(get_args(Engine))


def test_the_page_on_the_bench_names_every_figure():
    spans = set(re.findall(r"`([^`\n]+)`", page("bench")))
    assert {",".join(CODECS), *MODES, *(field.name for field in fields(Figures))} <= spans
    entries = [span for span in spans if re.match(r"[a-z0-9]+:[0-9a-z.]+", span)]
    plan = make_plan(1 << 20, clients=1, codecs=",".join(entries))
    assert len([plan.job(case) for case in plan.cases]) == len(entries) + 1 > 6


def test_workflows_stand_on_their_pages_as_they_are(tmp_path):
    shown = blocks(page("own-workflow"), "python")
    for text in shown:
        name = re.findall(r"^def (\w+)\(", text, flags=re.MULTILINE)[-1]
        (tmp_path / f"{name}.py").write_text(text)
        code = find_workflow(f"{tmp_path}/{name}.py:{name}")
        assert code.takes_args == bool(re.search(r"^def \w+\(run(: Run)?, args", text, re.M))
    assert len(shown[0].splitlines()) <= 25


def test_the_code_says_what_the_pages_explain():
    code = "\n".join(path.read_text() for path in Path(flstream.__file__).parent.rglob("*.py"))
    # Literals that the parser puts together, and the plural of a word, where it has one.
    texts = re.sub(r'"\s+f?"|\{\'(\w*)\' if .*?\}', r"\1", code)
    tables = page("debugging").partition("## Messages")[2]
    sentences = re.findall(r"^\| `(.*?)` \|", tables, flags=re.MULTILINE)
    assert len(sentences) > 12
    # A sentence may be put together of several literals, but each of its parts is in one of them.
    parts = {part.strip(" :;,()") for sentence in sentences for part in sentence.split("...")}
    assert [part for part in parts if len(part) > 3 and part not in texts] == []
