"""Text with LoRA: hospitals adapt a transformer, and send its low-rank factors only.

    python examples/text_lora.py [folder]

The notes are made up: each is of one department, by its words, and each hospital has words of its
own in between. The transformer is first trained on public notes, which need not be protected.
Beside it, the whole network is trained from new weights.
"""

import sys
from pathlib import Path

import numpy as np

import comity
from comity.studies.export import export

PICTURE = "bytes"
DEPARTMENTS = (range(1, 20), range(15, 35), range(30, 50))  # words, by their number; some shared
FILLERS, LENGTH = 100, 12  # words of each hospital's own, and words in a note
MODEL = "transformer(vocabulary=600,width=32)"
LORA = "transformer(vocabulary=600,width=32,rank=4,base={base})"


def notes(count: int, fillers: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return so many notes, as rows of word numbers, and their departments."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, len(DEPARTMENTS), count)
    words = rng.integers(fillers, fillers + FILLERS, (count, LENGTH))
    for note, label in zip(words, labels, strict=True):
        note[rng.permutation(LENGTH)[:4]] = rng.choice(DEPARTMENTS[label], 4)
    return words.astype(np.float32), labels


def main(out: str | Path = "runs/text-lora", rounds: int = 15) -> comity.Comparison:
    """Train and export the base, compare LoRA with the whole network, and write the page."""
    out = Path(out)
    public = comity.Federation.from_arrays({"public": notes(400, 50, seed=0)}, classes=3)
    base = comity.run("fedavg", public, model=MODEL, rounds=rounds, lr=0.1)
    export(base, "public", out / "base")
    hospitals = comity.Federation.from_arrays(
        {f"hospital {k}": notes(80, 50 + FILLERS * k, seed=k) for k in range(1, 5)}, classes=3
    )
    settings = {"model": LORA.format(base=out / "base"), "rounds": rounds, "lr": 0.1}
    methods = ["fedavg", f"fedavg(model={MODEL})"]
    comparison = comity.compare(methods, hospitals, out=out / "hospitals", **settings)
    for row in comparison.rows:
        print(f"{row.algorithm}: {row.mean:.1%}, {row.bytes['total']:,.0f} bytes")
    print(comity.report(comparison, quick=True, figures="svg"))
    return comparison


if __name__ == "__main__":
    main(*sys.argv[1:2])
