import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

# Scripts, not packages: they find each other by lying in one folder.
sys.path[:0] = [str(BENCHMARKS / "peers"), str(BENCHMARKS)]
