"""What the libraries of `beside.py` share: one federation and one network in a folder, and what is
to be run on them.

The folder has `parties.npz` (what each party trains and tests on), `NETWORK-SEED.npz` (a network's
initial weights) and `asked.json` (one run after the other, see `Asked`). A library is run in an
environment of its own, by a script that calls `answer` with a function from a run to its curve;
what it says on standard output is one line of JSON a run.

A curve is a list by round, from round 0, before any training, of how many test samples each party
answers rightly.
"""

from __future__ import annotations

import json
import math
import os
import random
import sys
import traceback
from collections import OrderedDict
from collections.abc import Callable, Sequence
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
    """None: all of a party's samples at once, so that no order matters and runs can be compared
    number by number.
    """


@dataclass(frozen=True)
class Asked:
    """One run: a method as the library calls it, with its options."""

    method: str
    seed: int
    how: How = field(default_factory=How)
    options: dict[str, Any] = field(default_factory=dict)
    network: str = "mlp2"


def mlp2(shape: Sequence[int], classes: int) -> tuple[nn.Module, nn.Module]:
    """Comity's network of this name, in two parts: two hidden layers, and a head that answers."""
    fc1, fc2 = nn.Linear(math.prod(shape), 200), nn.Linear(200, 200)
    body = OrderedDict(flat=nn.Flatten(), fc1=fc1, relu1=nn.ReLU(), fc2=fc2, relu2=nn.ReLU())
    return nn.Sequential(body), nn.Linear(200, classes)


def normed(shape: Sequence[int], classes: int) -> tuple[nn.Module, nn.Module]:
    """A smaller one with BatchNorm after each hidden layer; Comity takes it as a user's own."""
    fc1, fc2 = nn.Linear(math.prod(shape), 50), nn.Linear(50, 50)
    body = OrderedDict(flat=nn.Flatten(), fc1=fc1, bn1=nn.BatchNorm1d(50), relu1=nn.ReLU())
    body |= OrderedDict(fc2=fc2, bn2=nn.BatchNorm1d(50), relu2=nn.ReLU())
    return nn.Sequential(body), nn.Linear(50, classes)


def cnn4(shape: Sequence[int], classes: int) -> tuple[nn.Module, nn.Module]:
    """Comity's network of this name, for images of 28 x 28."""
    convolutions = [
        nn.Sequential(nn.Conv2d(channels, width, 5), nn.MaxPool2d(2), nn.ReLU())
        for channels, width in ((shape[0], 32), (32, 64))
    ]
    body = nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(1024, 512), nn.ReLU())
    return body, nn.Linear(512, classes)


NETWORKS = {"mlp2": mlp2, "normed": normed, "cnn4": cnn4}


class Network(nn.Module):
    """A network with initial weights of Comity's: a body, and a head called `fc`."""

    def __init__(self, kind: str, shape: Sequence[int], weights: dict[str, Tensor]) -> None:
        super().__init__()
        self.body, self.fc = NETWORKS[kind](shape, CLASSES)
        self.load_state_dict(weights)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.fc(self.body(x))
        return answer


def arrays(path: Path) -> dict[str, Tensor]:
    """The tensors in a file."""
    with np.load(path) as kept:
        return {name: torch.from_numpy(kept[name]) for name in kept.files}


def network(folder: Path, asked: Asked) -> Network:
    """The network that is asked for, with the initial weights of its seed."""
    shape = parties(folder)[0][0][0].shape[1:]
    return Network(asked.network, shape, arrays(folder / f"{asked.network}-{asked.seed}.npz"))


def parties(folder: Path) -> list[tuple[Pair, Pair]]:
    """What each party trains and tests on."""
    all_of = arrays(folder / "parties.npz")
    count = len(all_of) // 4
    return [
        ((all_of[f"{i}.x"], all_of[f"{i}.y"]), (all_of[f"{i}.x_test"], all_of[f"{i}.y_test"]))
        for i in range(count)
    ]


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
    """Do all that is asked in the folder that the command line names; a run that fails says why,
    and the others go on.
    """
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
