"""A party at home: its data, what it keeps, and the only code that runs a work there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from comity.base.call import CallId, Message, PartyResult, stream_name
from comity.base.finite import is_finite, not_finite
from comity.base.key import Key
from comity.base.record import Params, Sealed, is_record, keep, on_device, post, received
from comity.core.algorithm import AnyAlgorithm
from comity.core.party import Party
from comity.core.wrapper import chain, party_function
from comity.engines.running_call import KeptMoments, RunningCall
from comity.engines.saved import Saved, read_state, write_state
from comity.engines.versions import PartyState, Version, Versions
from comity.errors import ComityError
from comity.metrics.evaluation import Evaluation, evaluate
from comity.training.descent import train_outside
from comity.training.requests import plain
from comity.training.task import LearningTask


class Site:
    """One party's side of every exchange, the same on all engines."""

    def __init__(self, algorithm: AnyAlgorithm, party: Party, root: Key) -> None:
        self.algorithm = algorithm
        self.party = party
        self.root = root
        self._device = party.data.train.x.device
        self.versions = Versions(self._first, self._moved)
        self._saved: Version = None

    @property
    def state(self) -> PartyState:
        """All that the party keeps."""
        return self.versions.state

    @property
    def mine(self) -> Any:
        """The algorithm's state."""
        return self.state.mine

    @property
    def keeps(self) -> bool:
        """Whether the party keeps anything but what every run begins with."""
        return self.versions.now is not None

    def run(self, call: CallId, message: Message, inbox: dict[int, Sealed]) -> PartyResult:
        """Do what is asked, from beginning to end."""
        running = self.begin(call, message, inbox)
        while running.request:
            running.train()
        return self.end(running)

    def begin(self, call: CallId, message: Message, inbox: dict[int, Sealed]) -> RunningCall:
        """Do what is asked, up to the first training; what came of calls after the one that the
        letter names is forgotten.
        """
        self.versions.go_to(message.after)
        opened = {
            sender: self._here(received(sealed, sender, self.party.id, call))
            for sender, sealed in inbox.items()
        }
        usable = {sender: content for sender, content in opened.items() if is_finite(content)}
        party = replace(self.party, inbox=usable) if usable else self.party
        key = self.root.fold(
            "party", party.stream, call.round, stream_name(call.function), call.occurrence
        )
        function = party_function(self.algorithm, call.depth, call.function)
        return RunningCall(
            function(self.mine, self._here(self._content(message, call.depth)), party, key),
            call,
            KeptMoments(dict(self.state.moments), f"{call.depth}.{call.function}"),
            party.task.network.layer_stream(key.fold("layers")),
            tuple(sorted(opened.keys() - usable.keys())),
        )

    def end(self, running: RunningCall) -> PartyResult:
        """What came of a work that is done; the party's new state is kept, until a letter says that
        it does not count.
        """
        mine, reply = running.result
        post(reply, self.party.id, running.call.round)
        keeps = running.kept.uses > 0 or (
            mine is not self.mine and (_holds_something(mine) or _holds_something(self.mine))
        )
        ruined = ""
        if keeps:
            ruined = not_finite(mine)
            self.versions.add(running.call, PartyState(mine, running.kept.moments))
        return PartyResult(reply, running.steps, keeps, ruined, running.warning, running.unusable)

    def deployed(self, message: Message) -> tuple[LearningTask, Params]:
        """What the party would answer with now."""
        self.versions.go_to(message.after)
        theta = self.algorithm.deployed_model(self.mine, self._here(message.content), self.party)
        if not isinstance(theta, dict):
            raise ComityError(
                f"model must return parameters, but returned a {type(theta).__name__}: what is to"
                " be trained is trained in works."
            )
        return self.algorithm.party_for(self.party, self.mine).task, theta

    def evaluate(self, message: Message, final: bool) -> Evaluation:
        """How good what the party would deploy is on its own data."""
        return evaluate(*self.deployed(message), self.party.data, final, self.party.metric)

    def evaluate_solo(self, t: int) -> Evaluation:
        """What the party's own data alone would have given it: the warm-up of a method without
        exchange, batch by batch.
        """
        task = self.party.task
        key = self.root.fold("party", self.party.stream, t, stream_name("warm_up"), 0)
        first = self._moved(task.init(self.party.first_key(self.root)))
        theta = train_outside(self.party.fit(plain, first, key)).theta
        return evaluate(task, theta, self.party.data, False, self.party.metric)

    def save(self, folder: Path, t: int) -> Saved | None:
        """Write the state if it changed since the last time."""
        if self.versions.now == self._saved:
            return None
        saved = write_state(
            folder, f"party-{self.party.id}-{t}.safetensors", self.party.id, self.versions.blob()
        )
        self._saved = self.versions.now
        return saved

    def load(self, folder: Path, saved: Saved, version: CallId) -> None:
        """Put a saved state back: that after the call which is named."""
        self.restore(read_state(folder, saved), version)
        self._saved = version

    def restore(self, state: PartyState, version: CallId) -> None:
        """Keep a state that came of the call which is named, and no other."""
        self.versions.add(version, self._moved(state))
        self.versions.settle(version)

    def _first(self) -> PartyState:
        """What every run begins with."""
        return PartyState(
            self._moved(self.algorithm.init_party(self.party.first_key(self.root), self.party)), {}
        )

    def _content(self, message: Message, depth: int) -> Any:
        """What the party is sent; until a round has counted, its first weights are in place of the
        server's, if it has some.
        """
        where = chain(self.algorithm)[depth].traits.start_weights or ""
        if not (self.party.own_start and message.first and hasattr(message.content, where)):
            return message.content
        sent = getattr(message.content, where)
        own = self.party.task.init(self.party.first_key(self.root))
        return replace(message.content, **{where: sent | self._moved(keep(own, frozenset(sent)))})

    def _here(self, tree: Any) -> Any:
        """What came from elsewhere, on the device of the party's data; on the CPU it is there
        already.
        """
        return tree if self._device.type == "cpu" else self._moved(tree)

    def _moved(self, tree: Any) -> Any:
        return on_device(tree, self._device)


def _holds_something(tree: Any) -> bool:
    """Whether there is anything in a state but names and empty places."""
    if isinstance(tree, dict):
        return any(map(_holds_something, tree.values()))
    if is_record(tree):
        return any(map(_holds_something, vars(tree).values()))
    return any(map(_holds_something, tree)) if isinstance(tree, list | tuple) else tree is not None
