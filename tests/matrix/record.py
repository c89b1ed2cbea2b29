"""Write the table of digests: what each row of the matrix ends in, and each shipped job.

make digests, or: PYTHONPATH=.:tests:tests/matrix python tests/matrix/record.py [NAME]...
"""

import json
import sys
import tempfile
from pathlib import Path

from matrix_rows import ROWS, SHIPPED
from matrix_runs import DIGESTS, JOB, overrides_of, path_of, run
from run_fixtures import SHARED_HOST


def main(wanted: list[str]) -> None:
    """Run every row undisturbed, or those whose names begin as asked, and write the table."""
    table = json.loads(DIGESTS.read_text()) if DIGESTS.exists() and wanted else {}
    cases = {
        f"{row}, {size}": (JOB, overrides_of(row, size)) for row in ROWS for size in ROWS[row].sizes
    }
    cases |= {f"jobs/{job}": (path_of(job), list(how)) for job, how in SHIPPED.items()}
    for name, (job, overrides) in cases.items():
        if wanted and not any(map(name.startswith, wanted)):
            continue
        with tempfile.TemporaryDirectory() as folder:
            table[name] = run(Path(folder) / "run", overrides, job)
        print(name, table[name]["accuracy"], flush=True)
    rows = [f"  {json.dumps(name)}: {json.dumps(table[name])}" for name in cases if name in table]
    DIGESTS.write_text("{\n" + ",\n".join(rows) + "\n}\n")
    SHARED_HOST.end()


if __name__ == "__main__":
    main(sys.argv[1:])
