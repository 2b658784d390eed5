"""Writers of digits: each has a slant, half of them write in a round, and four join at the end.

    python examples/writers.py [folder]

scikit-learn's digits do not say who wrote them, so a writer here is forty digits with a slant of
the writer's own. For real writers use the dataset femnist (`comity list datasets`).
"""

import sys
from pathlib import Path

import numpy as np

import comity

PICTURE = "gains-fedavg+dbe"


def slanted(pictures: np.ndarray, slant: float) -> np.ndarray:
    """Shift each row of pixels sideways, the more the further it is from the middle."""
    rows = range(pictures.shape[-2])
    shifts = [round(slant * (row - (len(rows) - 1) / 2)) for row in rows]
    return np.stack([np.roll(pictures[..., k, :], shifts[k], -1) for k in rows], axis=-2)


def writers(count: int = 20, digits_each: int = 40) -> comity.Federation:
    """Return a federation of writers."""
    digits, rng = comity.load("digits"), np.random.default_rng(0)
    order = rng.permutation(len(digits.y)).reshape(-1)[: count * digits_each]
    parties = {}
    for k, rows in enumerate(np.split(order, count)):
        x, y = digits.x[rows].numpy(), digits.y[rows].numpy()
        parties[f"writer {k + 1}"] = (slanted(x, rng.uniform(-0.6, 0.6)), y)
    return comity.Federation.from_arrays(parties, classes=10)


def main(out: str | Path = "runs/writers", rounds: int = 20) -> comity.Comparison:
    """Compare FedAvg and FedAvg+DBE with training alone, and write the page."""
    comparison = comity.compare(
        ["fedavg", "fedavg+dbe"],
        writers(),
        participation=0.5,
        newcomers=4,
        rounds=rounds,
        out=out,
    )
    for row in comparison.rows[1:]:
        print(f"{row.algorithm}: newcomers gain {100 * row.joined_gain:+.1f} points by joining")
    print(comity.report(comparison, quick=True, figures="svg"))
    return comparison


if __name__ == "__main__":
    main(*sys.argv[1:2])
