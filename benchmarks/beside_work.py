"""What the libraries of `beside.py` share: one federation and one network in a folder, and what is to be run on them.

The folder has `parties.npz` (what each party trains and tests on), `weights-SEED.npz` (the initial weights of a seed) and
`asked.json` (one run after the other, see `Asked`). A library is run in an environment of its own, by a script that calls
`answer` with a function from a run to its curve; what it says on standard output is one line of JSON a run.

A curve is a list by round, from round 0, before any training, of how many test samples each party answers rightly.
"""

from __future__ import annotations

import json
import os
import random
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

Pair = tuple[Tensor, Tensor]
Curve = list[list[int]]
CLASSES = 10


@dataclass(frozen=True)
class How:
    """How parties train, in all libraries."""

    rounds: int = 20
    epochs: int = 1
    lr: float = 0.05
    batch: int | None = 10
    """None: all of a party's samples at once, so that no order matters and runs can be compared number by number."""


@dataclass(frozen=True)
class Asked:
    """One run: a method as the library calls it, with its options."""

    method: str
    seed: int
    how: How = field(default_factory=How)
    options: dict[str, Any] = field(default_factory=dict)


class Network(nn.Module):
    """Comity's mlp2, under names of its own: two hidden layers, and a head called `fc`."""

    def __init__(self, weights: dict[str, Tensor]) -> None:
        super().__init__()
        layers = [nn.Linear(w.shape[1], w.shape[0]) for w in (weights[f"fc{n}.weight"] for n in (1, 2, 3))]
        for n, layer in enumerate(layers, 1):
            layer.load_state_dict({kind: weights[f"fc{n}.{kind}"] for kind in ("weight", "bias")})
        self.body = nn.Sequential(nn.Flatten(), layers[0], nn.ReLU(), layers[1], nn.ReLU())
        self.fc: nn.Module = layers[2]

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.fc(self.body(x))
        return answer


def arrays(path: Path) -> dict[str, Tensor]:
    """The tensors in a file."""
    with np.load(path) as kept:
        return {name: torch.from_numpy(kept[name]) for name in kept.files}


def network(folder: Path, seed: int) -> Network:
    """The network with the initial weights of a seed."""
    return Network(arrays(folder / f"weights-{seed}.npz"))


def parties(folder: Path) -> list[tuple[Pair, Pair]]:
    """What each party trains and tests on."""
    all_of = arrays(folder / "parties.npz")
    count = len(all_of) // 4
    return [((all_of[f"{i}.x"], all_of[f"{i}.y"]), (all_of[f"{i}.x_test"], all_of[f"{i}.y_test"])) for i in range(count)]


def write_asked(folder: Path, runs: list[Asked]) -> None:
    (folder / "asked.json").write_text(json.dumps([asdict(run) for run in runs]))


def seeded(seed: int) -> None:
    """Seed all that a library may draw from."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - theirs draw from here
    torch.manual_seed(seed)


@torch.no_grad()
def right(model: nn.Module, tests: Pair) -> int:
    """How many test samples a model answers rightly."""
    model.eval()
    return int((model(tests[0]).argmax(1) == tests[1]).sum())


def answer(run: Callable[[Path, Asked], Curve]) -> None:
    """Do all that is asked in the folder that the command line names; a run that fails says why, and the others go on."""
    torch.set_num_threads(1)
    folder = Path(sys.argv[1]).resolve()
    said = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints
    for each in json.loads((folder / "asked.json").read_text()):
        asked = Asked(**each | {"how": How(**each["how"])})
        try:
            seeded(asked.seed)
            heard: dict[str, Any] = {"curve": run(folder, asked)}
        except Exception as why:  # somebody else's code may fail in any way
            traceback.print_exc()
            heard = {"failed": f"{type(why).__name__}: {why}"}
        said.write(json.dumps(heard) + "\n")
        said.flush()
