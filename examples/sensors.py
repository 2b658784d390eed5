"""Twelve sites with six kinds of sensor: what happens to the statistics of BatchNorm decides.

    python examples/sensors.py [folder]

The sites read scikit-learn's digits, in pairs with the same kind of sensor. FedAvg averages all of
BatchNorm's values (bn=all). With bn=params_only each site keeps the statistics of its own sensor,
and in FedBN all of its normalisation.
"""

import sys
from pathlib import Path

import comity

PICTURE = "accuracy-by-round"
SENSORS = "iid|keep(samples=50)|shift(kinds=none,invert,rotate,noise,contrast,blur)"


def main(out: str | Path = "runs/sensors", rounds: int = 30) -> comity.Comparison:
    """Compare the three with training alone, and write the page."""
    comparison = comity.compare(
        ["fedavg", "fedavg(bn=params_only)", "fedbn"],
        data="digits",
        partition=SENSORS,
        parties=12,
        model="fedbn-cnn(scale=0.125)",
        batch=16,
        lr=0.02,
        epochs=2,
        rounds=rounds,
        out=out,
    )
    for row in comparison.rows:
        print(f"{row.algorithm}: {row.mean:.1%}, {row.hurt} of {row.judged} sites clearly hurt")
    print(comity.report(comparison, quick=True, figures="svg"))
    return comparison


if __name__ == "__main__":
    main(*sys.argv[1:2])
