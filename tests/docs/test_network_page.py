"""The page on emulated links: its section and its trace are valid, and its example runs."""

import re
from pathlib import Path

from flstream.job import load_job
from flstream.job.link import TracePoint

PAGE = (Path(__file__).parents[2] / "docs" / "network.md").read_text()
(HOCON,) = re.findall(r"^```hocon\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
(CSV,) = re.findall(r"^```csv\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
(EXAMPLE,) = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
JOB = """
name = page, rounds = 1, clients { count = 3 }, train { script = client.py }
model { factory = "model:build" }
"""


def test_the_section_and_the_trace_are_valid_and_mean_what_the_page_says(tmp_path: Path) -> None:
    (tmp_path / "client.py").write_text("import flstream.client as flare\n")
    (tmp_path / "model.py").write_text("def build():\n    return {}\n")
    (tmp_path / "links.csv").write_text(CSV)
    (tmp_path / "job.conf").write_text(f"{JOB}\n{HOCON}")
    job = load_job(tmp_path / "job.conf")
    links = job.network.links(job.clients.site_names, job.seed)
    assert (links["site-1"].loss, links["site-3"].loss) == (0.0, 0.01)
    assert links["site-1"].period == 3
    assert links["site-1"].trace[1] == TracePoint(1, 7e6, None, 0.045)
    assert links["site-3"].latency == 0.05


def test_the_example_runs() -> None:
    exec(compile(EXAMPLE, "docs/network.md", "exec"), {})
