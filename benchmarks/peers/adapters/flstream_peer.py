"""A job of flstream, run by its command line tool.

python flstream_peer.py CLIENTS ROUNDS JOB [KEY=VALUE...]
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from safetensors import safe_open
from task import note, note_digits, wrong_sums

JOBS = Path(__file__).parents[3] / "jobs"


def main(clients: int, rounds: int, job: str, settings: list[str]) -> None:
    """Run the job, note what its events have of rounds, and check the model."""
    run, is_app = Path("run"), job.endswith("flower_app")
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
            case "round_started", _ if not is_app:  # which notes that itself, and the result
                note("round", at=event["time"], number=event["round"])
    if is_app:
        return
    is_exchange = job == "exchange"
    with safe_open(run / "global.safetensors", "pt" if is_exchange else "numpy") as file:
        if is_exchange:
            named = ((name.replace(".", "_"), file.get_tensor(name)) for name in file.keys())  # noqa: SIM118
            note("result", wrong=wrong_sums(named, clients, rounds))
        else:
            note_digits(file.get_tensor("weight"), file.get_tensor("bias"))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:])
