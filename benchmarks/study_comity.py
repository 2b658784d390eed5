"""Comity as one of the libraries of `study.py`: `comity.compare`, and its page.

    python study_comity.py FOLDER

The folder has the files of `beside_work.py`, and `study.json`: the methods, seeds and settings.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from beside_work import parties

import comity


def main() -> None:
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    study = json.loads((folder / "study.json").read_text())
    federation = comity.Federation.from_arrays(
        {f"p{i}": pairs for i, pairs in enumerate(parties(folder))}, validation=0.0, classes=10
    )
    out = folder / "comity"
    comparison = comity.compare(study["methods"], federation, out=out, **study["settings"])
    comparison.report()


if __name__ == "__main__":
    main()
