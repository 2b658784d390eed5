"""A party at home: its data, what it keeps, and the only code that runs a work there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from comity.core.algorithm import AnyAlgorithm
from comity.core.codec import decode, encode
from comity.core.descent import train
from comity.core.evaluation import Evaluation, evaluate
from comity.core.fit import plain
from comity.core.key import Key
from comity.core.net import Answer, Call
from comity.core.party import Party
from comity.core.record import Params, Sealed, leaves, on_device, payload, post, received, record
from comity.core.task import Task
from comity.core.training import Moments
from comity.core.wrapper import work_of
from comity.engines.running import KeptMoments, RunningWork
from comity.engines.saved import Saved, read_state, write_state
from comity.errors import ComityError


@record
class PartyState:
    """All that a party keeps: the algorithm's state, and its optimizers' moments if the experiment keeps them."""

    mine: Any
    moments: dict[str, Moments]


class Site:
    """One party's side of every exchange, the same on all engines."""

    def __init__(self, algorithm: AnyAlgorithm, party: Party, root: Key) -> None:
        self.algorithm = algorithm
        self.party = party
        self._root = root
        self._device = party.data.train.x.device
        self._state: PartyState | None = PartyState(self._moved(algorithm.client(root.fold("init"), party)), {})
        self._changes = 0
        self._saved = 0
        self._spilled = 0

    @property
    def state(self) -> PartyState:
        """All that the party keeps."""
        assert self._state is not None, "the state is spilled"
        return self._state

    @state.setter
    def state(self, state: PartyState) -> None:
        self._state = state
        self._changes += 1

    @property
    def mine(self) -> Any:
        """The algorithm's state."""
        return self.state.mine

    @property
    def weight(self) -> int:
        """Bytes that must be kept; none as long as the state is the one that every run begins with."""
        return payload(self.state) if self._changes else 0

    @property
    def spilled(self) -> bool:
        """Whether the state is not in memory."""
        return self._state is None

    def spill(self) -> bytes | None:
        """Give the state out of memory: what is to be written down, unless it was already."""
        blob = encode(self.state) if self._spilled < self._changes else None
        self._state = None
        self._spilled = self._changes
        return blob

    def restore(self, blob: bytes) -> None:
        """Take the state back into memory."""
        self._state = self._moved(decode(blob))

    def work(self, call: Call, letter: Any, inbox: dict[int, Sealed]) -> Answer:
        """Do what is asked, from beginning to end."""
        running = self.begin(call, letter, inbox)
        while running.request:
            running.train()
        return self.end(running)

    def begin(self, call: Call, letter: Any, inbox: dict[int, Sealed]) -> RunningWork:
        """Do what is asked, up to the first training."""
        party = self.party
        if inbox:
            party = replace(party, inbox={j: received(parcel, j, party.id, call.round, call) for j, parcel in inbox.items()})
        key = self._root.fold("party", party.stream, call.round, call.work, call.use)
        work = work_of(self.algorithm, call.depth, call.work)
        return RunningWork(
            work(self.mine, letter, party, key),
            call.work,
            KeptMoments(dict(self.state.moments), f"{call.depth}.{call.work}"),
            party.task.network.layer_stream(key.fold("layers")),
            call.round,
        )

    def end(self, running: RunningWork) -> Answer:
        """What came of a work that is done; the party's new state is kept."""
        mine, reply = running.result
        post(reply, self.party.id, running.round)
        if mine is not self.mine or running.kept.uses:
            self.state = PartyState(mine, running.kept.moments)
        return Answer(reply, running.steps, running.remark)

    def deployed(self, letter: Any) -> tuple[Task, Params]:
        """What the party would answer with now."""
        theta = self.algorithm.model(self.mine, letter, self.party)
        if not isinstance(theta, dict):
            raise ComityError(
                f"model must return parameters, but returned a {type(theta).__name__}: what is to be trained is trained in works."
            )
        return self.algorithm.party_for(self.party, self.mine).task, theta

    def evaluate(self, letter: Any, final: bool) -> Evaluation:
        """How good what the party would deploy is on its own data."""
        return evaluate(*self.deployed(letter), self.party.data, final)

    def evaluate_solo(self, t: int) -> Evaluation:
        """What the party's own data alone would have given it: the warm-up of a method without exchange, batch by batch."""
        task = self.party.task
        key = self._root.fold("party", self.party.stream, t, "welcome", 0)
        first = self._moved(task.init(self._root.fold("init")))
        with task.network.layer_stream(key.fold("layers")):
            theta = train(self.party.fit(plain, first, key)).theta
        return evaluate(task, theta, self.party.data, False)

    def _moved(self, tree: Any) -> Any:
        return on_device(tree, self._device)

    def save(self, folder: Path, t: int, spilled: bytes | None = None) -> Saved | None:
        """Write the state if it changed since the last time; a state without content needs no file."""
        if self._changes == self._saved or (spilled is None and not leaves(self.state)):
            return None
        blob = encode(self.state) if spilled is None else spilled
        saved = write_state(folder, f"party-{self.party.id}-{t}.safetensors", self.party.id, blob)
        self._saved = self._changes
        return saved

    def load(self, folder: Path, saved: Saved) -> None:
        """Put a saved state back."""
        self.state = self._moved(read_state(folder, saved))
        self._saved = self._changes
