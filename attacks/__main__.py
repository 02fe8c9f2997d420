"""Run attacks, print a table of what happened, and end with status 1 if anything was lost, let in or unanswered."""

import argparse
import sys
import tempfile
from pathlib import Path

from attacks import faults, kills, readers, uploads
from attacks.sample import make_sample
from frontrank.tables import Table

PARTS = {"uploads": uploads.attack, "readers": readers.attack, "kills": kills.attack, "faults": faults.attack}


def main() -> int:
    """Run the chosen parts."""
    parser = argparse.ArgumentParser(prog="scripts/attack", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; all by default")
    parser.add_argument("--uploads", type=int, default=100, help="hostile uploads; 100 by default")
    parser.add_argument("--files", type=int, default=50, help="hostile files for each reader; 50 by default")
    parser.add_argument("--readers", default="", help="such as index,labels; all by default")
    parser.add_argument("--kills", type=int, default=50, help="kills of each command; 50 by default")
    parser.add_argument("--commands", default="index,embed,train,compare", help="that are killed; all four by default")
    parser.add_argument("--minutes", type=float, default=30.0, help="of load with faults, in all; 30 by default")
    parser.add_argument(
        "--faults", default="disk,postgres,milvus", help="all three by default, a third of the time each"
    )
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    failures = 0
    with tempfile.TemporaryDirectory(prefix="frontrank-attack-") as folder:
        sample = make_sample(Path(folder))
        for name in options.parts or PARTS:
            rows = PARTS[name](sample, options)
            failures += sum(row[2] for row in rows)
            cells = [[what, str(count), str(failed), note] for what, count, failed, note in rows]
            print(Table([name, "tried", "failed", "what happened"], cells, "lrrl").render("text"), flush=True)
            print(flush=True)
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
