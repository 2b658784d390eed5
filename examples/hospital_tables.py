"""Four hospitals with small tables: does heart disease get predicted better together?

    python examples/hospital_tables.py [folder]

The data (UCI heart disease) come with Comity. Every patient is tested on once, by 5-fold
cross-validation, because a hospital has too few patients to set some aside.
"""

import sys
from pathlib import Path

import comity

PICTURE = "gains-fedavg+dbe"


def main(out: str | Path = "runs/hospital-tables", rounds: int = 20) -> comity.Comparison:
    """Compare FedAvg and FedAvg+DBE with training alone, by AUC, and write the page."""
    comparison = comity.compare(
        ["fedavg", "fedavg+dbe"], data="heart", metric="auc", folds=5, rounds=rounds, out=out
    )
    for party in comparison.answers:
        print(party)
    print(comity.report(comparison, quick=True, figures="svg"))
    return comparison


if __name__ == "__main__":
    main(*sys.argv[1:2])
