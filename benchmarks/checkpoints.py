"""What checkpoints cost: SOLO with 100 personal models of 0.8 MB, all of which change every round.

    python benchmarks/checkpoints.py [--rounds 80]

Prints the share of a run's time that went into checkpoints, for both engines.
"""

from __future__ import annotations

import argparse
import csv

from bare import LR, data_of

import comity


def main() -> None:
    cli = argparse.ArgumentParser()
    cli.add_argument("--rounds", type=int, default=80)
    args = cli.parse_args()
    federation = comity.Federation.from_arrays(
        {f"p{i}": pair for i, pair in enumerate(data_of("mlp2"))}, classes=10
    )
    for engine in ("loop", "process"):
        result = comity.run(
            "solo", federation, model="mlp2", lr=LR, rounds=args.rounds, engine=engine
        )
        with (result.folder / "timing.csv").open(newline="") as file:
            rows = [{k: float(v) for k, v in row.items()} for row in csv.DictReader(file)]
        spent = [row["checkpoint"] for row in rows]
        total = sum(row["train"] + row["evaluate"] + row["checkpoint"] for row in rows)
        print(
            f"{engine:8} {sum(s > 0 for s in spent)} checkpoints in {total:.1f} s:"
            f" {sum(spent) / total:.1%} of the time"
        )


if __name__ == "__main__":
    main()
