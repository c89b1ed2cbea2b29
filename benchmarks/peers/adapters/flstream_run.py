"""A job of flstream, run by its command line tool.

python flstream_run.py JOB CLIENTS ROUNDS [KEY=VALUE...]
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from journal import note, note_result
from safetensors import safe_open

JOBS = Path(__file__).parents[3] / "jobs"


def main(job: str, clients: int, rounds: int, settings: list[str]) -> None:
    """Run the job, then tell what its events say of it, and check the model."""
    run = Path("run")
    command = [sys.executable, "-m", "flstream", "simulate", str(JOBS / job)]
    command += ["--run-dir", str(run), "--quiet"]
    # The last checkpoint alone, as the peers keep it.
    for setting in [f"rounds={rounds}", "checkpoints.keep=1", *settings]:
        command += ["--set", setting]
    status = subprocess.run(command, check=False).returncode
    if status:
        raise SystemExit(status)
    for line in (run / "events.jsonl").read_text().splitlines():
        event = json.loads(line)
        match event["kind"], event.get("process"):
            case "process_ready", "server":
                note("idle", at=event["time"], pid=event["pid"], rss=event["idle_rss"])
            case "round_started", _:
                note("round", at=event["time"], number=event["round"])
    note_result(wrong_sums(run, clients, rounds) if job == "exchange" else wrong_digits(run))


def wrong_sums(run: Path, clients: int, rounds: int) -> str:
    """What is wrong with the final model of the exchange job, or nothing."""
    from sums import check

    with safe_open(run / "global.safetensors", framework="pt") as file:
        named = ((name.replace(".", "_"), file.get_tensor(name)) for name in file.keys())  # noqa: SIM118
        return check(named, clients, rounds)


def wrong_digits(run: Path) -> str:
    """What is wrong with the final model of the job on digits, or nothing."""
    from digits import check

    with safe_open(run / "global.safetensors", framework="numpy") as file:
        return check(file.get_tensor("weight"), file.get_tensor("bias"))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
