"""A private run: DP-SGD at every site, and what it costs.

    python examples/private.py [folder]

`+dp` clips the gradient of every record and adds noise, so that nobody who sees the messages can
tell whether a record was there, up to epsilon (at delta 1e-5 here). Less noise, larger epsilon.
"""

import sys
from pathlib import Path

import comity

PICTURE = "accuracy-by-round"


def main(out: str | Path = "runs/private", rounds: int = 15) -> comity.Comparison:
    """Compare FedAvg with and without noise, and write the page."""
    comparison = comity.compare(
        ["fedavg", "fedavg+dp(noise=0.7)", "fedavg+dp(noise=1.5)"],
        data="digits",
        partition="iid",
        parties=5,
        model="linear",
        batch=32,
        lr=0.2,
        rounds=rounds,
        out=out,
    )
    for row in comparison.rows:
        print(f"{row.algorithm}: {row.mean:.1%}, epsilon {row.epsilon}")
    print(comity.report(comparison, quick=True, figures="svg"))
    return comparison


if __name__ == "__main__":
    main(*sys.argv[1:2])
