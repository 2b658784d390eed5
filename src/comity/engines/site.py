"""A party at home: its data, its state, and the only code that runs a work there."""

from __future__ import annotations

import zlib
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from comity.core.algorithm import Algorithm, resolve
from comity.core.codec import decode, encode
from comity.core.evaluation import Judgement, judge
from comity.core.fit import METER, Meter, fit
from comity.core.key import Key
from comity.core.moments import MEMORY, Memory, Moments
from comity.core.net import Call, Saved
from comity.core.party import Party
from comity.core.record import Params, Sealed, leaves, on_device, payload, record, unseal
from comity.core.task import Task
from comity.errors import ComityError


@record
class Home:
    """All that a party keeps: the algorithm's state, and its optimizers' moments if the experiment keeps them."""

    mine: Any
    moments: dict[str, Moments]


class Site:
    """One party's side of every exchange, the same on all engines."""

    def __init__(self, algorithm: Algorithm, party: Party, root: Key) -> None:
        self.algorithm = algorithm
        self.party = party
        self._root = root
        self._device = party.data.train.x.device
        self._home: Home | None = Home(self._moved(algorithm.client(root.fold("init"), party)), {})
        self._changes = self._saved = self._shelved = 0

    @property
    def home(self) -> Home:
        """All that the party keeps."""
        assert self._home is not None, "the state is on the shelf"
        return self._home

    @home.setter
    def home(self, home: Home) -> None:
        self._home = home
        self._changes += 1

    @property
    def mine(self) -> Any:
        """The algorithm's state."""
        return self.home.mine

    @property
    def weight(self) -> int:
        """Bytes that must be kept; none as long as the state is the one that every run begins with."""
        return payload(self.home) if self._changes else 0

    @property
    def away(self) -> bool:
        """Whether the state is on the shelf."""
        return self._home is None

    def leave(self) -> bytes | None:
        """Give the state away: what is to be put on the shelf, unless that is there already."""
        blob = encode(self.home) if self._shelved < self._changes else None
        self._home, self._shelved = None, self._changes
        return blob

    def back(self, blob: bytes) -> None:
        """Take the state from the shelf."""
        self._home = self._moved(decode(blob))

    def work(self, call: Call, letter: Any, inbox: dict[int, Sealed]) -> tuple[Any, int]:
        """Do what is asked; the reply, and how many gradient steps it took."""
        if call.depth < 0:
            return self._judge(call, letter), 0
        party = self.party
        if inbox:
            opened = {sender: unseal(parcel) for sender, parcel in inbox.items()}
            party = replace(party, inbox=opened)
        key = self._root.fold("party", party.stream, call.round, call.work, call.use)
        work = resolve(self.algorithm, call.depth, call.work)
        meter, memory = Meter(), Memory(dict(self.home.moments), f"{call.depth}.{call.work}")
        tokens = METER.set(meter), MEMORY.set(memory)
        try:
            with party.task.network.drawing(key.fold("layers")) if party.task.network.draws else nullcontext():
                mine, reply = work(self.mine, letter, party, key)
        finally:
            METER.reset(tokens[0])
            MEMORY.reset(tokens[1])
        if mine is not self.mine or memory.uses:
            self.home = Home(mine, memory.moments)
        return reply, meter.steps

    def _judge(self, call: Call, letter: Any) -> Judgement:
        """Judge what the party would deploy, or what it would have alone; no steps of the run are made."""
        token = METER.set(Meter())
        try:
            return self._alone(call) if call.work == "alone" else self._evaluate(letter, bool(call.use))
        finally:
            METER.reset(token)

    def deployed(self, letter: Any) -> tuple[Task, Params]:
        """What the party would answer with now."""
        return self.algorithm.at(self.party, self.mine).task, self.algorithm.model(self.mine, letter, self.party)

    def _evaluate(self, letter: Any, final: bool) -> Judgement:
        return judge(*self.deployed(letter), self.party.data, final)

    def _alone(self, call: Call) -> Judgement:
        """What the party's own data would have given it: the warm-up of a method without exchange, batch by batch."""
        task, key = self.party.task, self._root.fold("party", self.party.stream, call.round, "welcome", 0)
        with task.network.drawing(key.fold("layers")):
            first = self._moved(task.init(self._root.fold("init")))
            theta = fit(task.loss, first, self.party.data.train, key, self.party.training).theta
        return judge(task, theta, self.party.data, False)

    def _moved(self, tree: Any) -> Any:
        return on_device(tree, self._device)

    def save(self, folder: Path, t: int, shelved: bytes | None = None) -> Saved | None:
        """Write the state if it changed since the last time; a state without content needs no file."""
        if self._changes == self._saved or (shelved is None and not leaves(self.home)):
            return None
        blob = encode(self.home) if shelved is None else shelved
        file = f"party-{self.party.id}-{t}.safetensors"
        (folder / file).write_bytes(blob)
        self._saved = self._changes
        return Saved(self.party.id, file, len(blob), zlib.crc32(blob))

    def load(self, folder: Path, saved: Saved) -> None:
        """Put a saved state back."""
        self.home = self._moved(read_state(folder, saved))
        self._saved = self._changes


def read_state(folder: Path, saved: Saved) -> Any:
    """A state from a checkpoint, checked."""
    try:
        blob = (folder / saved.file).read_bytes()
    except OSError as why:
        raise ComityError(f"The checkpoint is damaged: {folder / saved.file} cannot be read ({why.strerror}).") from why
    if len(blob) != saved.bytes or zlib.crc32(blob) != saved.crc:
        raise ComityError(f"The checkpoint is damaged: {folder / saved.file} is not what was written.")
    return decode(blob)
