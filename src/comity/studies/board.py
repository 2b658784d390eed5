"""The board: all methods on federations of different kinds, as data that the package ships.

`board.json` beside this module is generated from the runs of `comity reproduce comity/board` by
`comity.papers.board`. It is one JSON object:

- `format`: 1.
- `command`, `code`: the commands and the commits of the runs.
- `federations`: a list, in the order of the table. Each has
    - `name`, `title`;
    - `description`, the fields of `Description`: what is known of a federation without training;
    - `steps`: the gradient evaluations of a party under SOLO;
    - `seeds`: the seeds that were run;
    - `solo`: SOLO's accuracy in percent, mean over parties and seeds;
    - `methods`: by the name of the row, the fields of `MethodOnFederation`.

Runs of the board are short, about 120 gradient evaluations of a party: a gain is the lead at that
point and not that of converged models. Gains are in percentage points. An interval that is missing
(fewer than three seeds) is null. Methods that cannot run on a federation, or were not run there so
far, are not listed there.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from comity.base.record import is_buffer
from comity.errors import CorruptedFile
from comity.runs.build import SimulatedRun
from comity.studies.compare_warnings import input_difference
from comity.training.task import LearningTask

BOARD = Path(__file__).with_name("board.json")
FORMAT = 1
ROUNDED = 4
"""The decimals of measured figures in the file."""

NetworkKind = Literal["linear", "mlp", "cnn", "text"]


@dataclass(frozen=True)
class Description:
    """What is known of a federation without training, as `describe` measures it."""

    data: str
    partition: str
    parties: int
    samples: float
    """The training samples of a party, mean over parties."""
    least_samples: int
    """The training samples of the smallest party."""
    classes: int
    """The number of classes; 1 in regression."""
    label_skew: float | None
    """The mean total variation distance between a party's class distribution and that of all, from
    0 to 1; None if a party does not reveal its class counts.
    """
    input_difference: float
    """How far the parties' inputs are from those of all, in standard deviations."""
    model: str
    network: NetworkKind
    parameters: int
    """The number of trained weights."""
    batchnorm: bool
    """Whether the network has BatchNorm with running statistics."""


@dataclass(frozen=True)
class MethodOnFederation:
    """A method on a federation, compared with SOLO under the same seeds."""

    algorithm: str
    gain: float
    """The mean accuracy above SOLO's, in percentage points, mean over seeds."""
    low: float | None
    """The lower end of its 95% interval over seeds (Student's t, paired by seed)."""
    high: float | None
    steps: float
    """The gradient evaluations of a party, mean over parties and seeds."""
    bytes: int
    """The bytes per party, mean over seeds."""


@dataclass(frozen=True)
class BoardFederation:
    """A federation of the board, with all methods that ran on it."""

    name: str
    title: str
    description: Description
    steps: float
    seeds: tuple[int, ...]
    solo: float
    methods: Mapping[str, MethodOnFederation]


@dataclass(frozen=True)
class Board:
    """The board of all methods."""

    command: str
    code: str
    federations: tuple[BoardFederation, ...]

    def to_text(self) -> str:
        """Return the content of `board.json`."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1, ensure_ascii=False) + "\n"


def describe(job: SimulatedRun) -> Description:
    """Describe the federation of a prepared run. Nothing is trained."""
    task = job.info.task
    counts = [len(party.data.train.x) for party in job.parties]
    skew = job.context.party_infos.label_skew()
    inputs = [party.data.train.x for party in job.parties]
    is_text = not inputs[0].is_floating_point()
    trained = [name for name in task.shapes if not is_buffer(name)]
    return Description(
        data=job.experiment.data,
        partition=job.experiment.partition,
        parties=len(counts),
        samples=round(sum(counts) / len(counts), ROUNDED),
        least_samples=min(counts),
        classes=job.federation.classes,
        label_skew=None if skew is None else round(skew, ROUNDED),
        # the numbers of tokens have no mean that says anything
        input_difference=0.0 if is_text else round(input_difference(inputs), ROUNDED),
        model=job.experiment.model,
        network="text" if is_text else _kind(task),
        parameters=sum(math.prod(task.shapes[name][0]) for name in trained),
        batchnorm=any(is_buffer(name) for name in task.norm_names),
    )


def _kind(task: LearningTask) -> NetworkKind:
    """Return the kind of a network by the shapes of its weights."""
    if not frozenset(task.shapes) - task.head_names:
        return "linear"
    dimensions = max(len(task.shapes[name][0]) for name in task.shapes)
    return "cnn" if dimensions > 2 else "mlp"


@cache
def read_board(path: Path = BOARD) -> Board:
    """Read the board.

    Raises CorruptedFile if the file is missing or has another format.
    """
    try:
        plain: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if plain["format"] != FORMAT:
            raise ValueError(f"its format is {plain['format']}, not {FORMAT}")
        return Board(plain["command"], plain["code"], tuple(map(_federation, plain["federations"])))
    except (OSError, ValueError, KeyError, TypeError) as why:
        raise CorruptedFile(f"{path} is missing or damaged: install Comity again ({why}).") from why


def _federation(plain: Mapping[str, Any]) -> BoardFederation:
    return BoardFederation(
        name=plain["name"],
        title=plain["title"],
        description=Description(**plain["description"]),
        steps=plain["steps"],
        seeds=tuple(plain["seeds"]),
        solo=plain["solo"],
        methods={
            name: MethodOnFederation(**of_method) for name, of_method in plain["methods"].items()
        },
    )
