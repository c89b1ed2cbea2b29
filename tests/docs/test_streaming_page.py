"""The page on streaming, and the README's lines for two terminals: their programs run."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from nightly_cases import first_and_nightly

from flstream import streaming
from flstream.streaming.fetching import DownloadOptions
from flstream.streaming.refs import OfferOptions

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "streaming.md").read_text()
PROGRAM = re.compile(r"^```python\n(# (\w+\.py)\n.*?)^```$", flags=re.MULTILINE | re.DOTALL)
README = {name: text for text, name in PROGRAM.findall((ROOT / "README.md").read_text())}
PROGRAMS = {name: text for text, name in PROGRAM.findall(PAGE)}
PRINTED = {
    "pairs.py": {"finished", "True 1000000.0"},
    "some.py": {"['head.weight', 'head.bias'] 20040"},
    "specs.py": {"['fc', 'conv'] 1"},
    "payload.py": {"Score(name='loss', value=0.5) ['site-1', 'site-2'] torch.Size([3])"},
    "several.py": {"[0, 1, 2, 3]"},
}


def test_every_program_of_the_page_is_run_here():
    assert PROGRAMS.keys() == PRINTED.keys()


@first_and_nightly("name", PRINTED, brief=1)
def test_a_program_of_the_page_prints_what_it_is_to_print(tmp_path, name):
    (tmp_path / name).write_text(PROGRAMS[name])
    done = subprocess.run(
        [sys.executable, name], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.splitlines()) == PRINTED[name]


@pytest.mark.nightly
def test_a_model_goes_from_one_terminal_to_the_other(tmp_path):
    # The port is another one, since that of the README may be in use.
    (tmp_path / "sender.py").write_text(README["sender.py"].replace(":7707", ":0"))
    (tmp_path / "receiver.py").write_text(README["receiver.py"])
    assert all(len(text.splitlines()) <= 11 for text in README.values())
    sender = subprocess.Popen(
        [sys.executable, "sender.py"], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    try:
        lines = "".join(sender.stdout.readline() for _ in range(3))
        receiver = subprocess.run(
            [sys.executable, "receiver.py"],
            cwd=tmp_path,
            input=lines,
            capture_output=True,
            text=True,
            check=False,
        )
        assert receiver.returncode == 0, receiver.stderr
        assert "ok 16176040 {'0.weight': (4000, 1000), '0.bias': (4000,)" in receiver.stdout
        assert sender.communicate(timeout=60)[0] == "finished\n"
    finally:
        sender.kill()
        sender.communicate()


def test_every_name_and_every_option_is_on_the_page_or_in_the_readme():
    text = PAGE + "".join(README.values())
    left_out = {"Registry", "Outcome", "Status", "StartToken", "TcpListener"}
    assert [name for name in streaming.__all__ if name not in text and name not in left_out] == []
    options = {*OfferOptions.__annotations__, *DownloadOptions.__annotations__}
    assert [name for name in options if f"`{name}`" not in PAGE] == []
