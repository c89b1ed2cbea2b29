import sys
from pathlib import Path

PEERS = Path(__file__).parents[2] / "benchmarks" / "peers"

# Scripts, not a package: they find each other by lying in one folder.
sys.path.insert(0, str(PEERS))
