"""A party's site: its data and state, and the only code that runs a party function there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from comity.algorithms.dp import Dp
from comity.algorithms.ldp import Ldp
from comity.base.call import CallId, Message, PartyResult, stream_name
from comity.base.finite import FiniteRows, is_finite, not_finite
from comity.base.key import Key
from comity.base.record import Params, Sealed, is_record, keep, on_device, open_sealed, set_origin
from comity.base.samples import PartyData
from comity.core.algorithm import AnyAlgorithm
from comity.core.party import Party
from comity.core.wrapper import chain, party_function
from comity.engines.purity import WriteCheck
from comity.engines.running_call import KeptMoments, RunningCall
from comity.engines.saved import Saved, read_state, write_state
from comity.engines.versions import PartyState, Version, Versions
from comity.errors import ComityError
from comity.metrics.calibration import UNCALIBRATED, Calibration, calibrate
from comity.metrics.evaluation import (
    Evaluation,
    Predicted,
    evaluate,
    predict_by,
    score_predicted,
)
from comity.training.descent import train_outside
from comity.training.requests import plain
from comity.training.task import LearningTask


class Site:
    """One party's side of every exchange, the same on all engines."""

    def __init__(self, algorithm: AnyAlgorithm, party: Party, root: Key) -> None:
        self.algorithm = algorithm
        self.party = party
        self.root = root
        self._to_device = _mover_to(party.data.train.x.device)
        # `versions` has no reference to this site: both are freed as soon as it is dropped.
        first_state = partial(_first_state, algorithm, party, root, self._to_device)
        self.versions = Versions(first_state, self._to_device)
        self._saved: Version = None

    @property
    def state(self) -> PartyState:
        """The party's whole state."""
        return self.versions.state

    @property
    def mine(self) -> Any:
        """The method's part of the party's state."""
        return self.state.mine

    @property
    def keeps(self) -> bool:
        """Whether the party's state differs from the initial one."""
        return self.versions.now is not None

    def run(
        self, call: CallId, message: Message, inbox: dict[int, Sealed], inputs: bytes = b""
    ) -> PartyResult:
        """Run a party function from beginning to end. The noise in the reply depends on `inputs`, a
        digest of the request, if the party is at a site of its own.
        """
        running = self.begin(call, message, inbox, inputs)
        while running.request:
            running.train()
        return self.end(running)

    def begin(
        self, call: CallId, message: Message, inbox: dict[int, Sealed], inputs: bytes = b""
    ) -> RunningCall:
        """Run a party function up to its first training. States from calls after the one that the
        message names are discarded.
        """
        self.versions.go_to(message.after)
        before = self.state
        usable = self._open(inbox, call) if inbox else {}
        party = replace(self.party, inbox=usable) if usable else self.party
        key = self.root.fold(
            "party", party.stream, call.round, stream_name(call.function), call.occurrence
        ).bind(inputs)
        state, content = before.mine, self._to_device(self._content(message, call.depth))
        start = partial(
            party_function(self.algorithm, call.depth, call.function), state, content, party, key
        )
        layers = party.task.network.layer_stream(key.fold("layers"))
        received = {
            "its message": content,
            "its state": state,
            "its samples": _samples_of(party.data),
            **({"its inbox": usable} if usable else {}),
        }
        writes = WriteCheck(call.function, start, received, layers)
        return RunningCall(
            start(),
            call,
            KeptMoments(dict(before.moments), f"{call.depth}.{call.function}"),
            layers,
            tuple(sorted(inbox.keys() - usable.keys())) if inbox else (),
            writes,
        )

    def _open(self, inbox: Mapping[int, Sealed], call: CallId) -> dict[int, Any]:
        """The contents of sealed messages, by sender, without those that are not finite."""
        contents = {
            sender: self._to_device(open_sealed(sealed, sender, self.party.id, call))
            for sender, sealed in inbox.items()
        }
        return {sender: content for sender, content in contents.items() if is_finite(content)}

    def end(self, running: RunningCall, rows: FiniteRows | None = None) -> PartyResult:
        """The result of a party function that has returned. The new state is kept until a message
        says that it does not count.

        `rows` checks the replies and states of parties that were trained together. Without it,
        whoever receives the reply checks it.
        """
        new_state, reply = running.result
        before = self.mine
        set_origin(reply, self.party.id, running.call.round)
        keeps = running.kept_moments.trainings > 0 or (
            new_state is not before and (_has_values(new_state) or _has_values(before))
        )
        ruined = ""
        if keeps:
            ruined = rows.not_finite(new_state) if rows else not_finite(new_state)
            self.versions.add(running.call, PartyState(new_state, running.kept_moments.moments))
        unfit = rows.not_finite(reply) if rows else None
        return PartyResult(
            reply, running.steps, keeps, ruined, running.warning, running.unusable, unfit
        )

    def deployed(self, message: Message) -> tuple[LearningTask, Params]:
        """The task and the parameters of the model that the party would deploy now."""
        self.versions.go_to(message.after)
        state, content = self.mine, self._to_device(message.content)
        start = partial(self.algorithm.deployed_model, state, content, self.party)
        writes = WriteCheck("deployed_model", start, {"its message": content, "its state": state})
        theta = start()
        writes.check()
        if not isinstance(theta, dict):
            raise ComityError(
                f"deployed_model must return parameters, but returned a {type(theta).__name__}:"
                " training belongs in party functions."
            )
        return self.algorithm.party_for(self.party, self.mine).task, theta

    def predict(self, message: Message, final: bool) -> Predicted:
        """Apply the model that the party would deploy to its own data, calibrated after the last
        round (`final`).
        """
        task, theta = self.deployed(message)
        calibration = self.calibration(task, theta) if final else UNCALIBRATED
        return predict_by(task, theta, self.party.data, calibration)

    def evaluate(self, message: Message, final: bool) -> Evaluation:
        """Evaluate the model that the party would deploy on its own data."""
        return score_predicted([self.predict(message, final)], final, self.party.metric)[0]

    def calibration(self, task: LearningTask, theta: Params) -> Calibration:
        """The calibration of a model, fitted on the party's own samples."""
        return calibrate(
            self.party.calibrate,
            task,
            theta,
            self.party.data,
            only_validation=hides_training_samples(self.algorithm),
        )

    def evaluate_solo(self, t: int) -> Evaluation:
        """Evaluate a model trained on the party's data alone: the warm-up of a method without
        exchange, batch by batch.
        """
        task = self.party.task
        key = self.root.fold("party", self.party.stream, t, stream_name("warm_up"), 0)
        initial = self._to_device(task.init(self.party.first_key(self.root)))
        theta = train_outside(self.party.fit(plain, initial, key)).theta
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
        """Restore a saved state as the one after this call."""
        self.restore(read_state(folder, saved), version)
        self._saved = version

    def restore(self, state: PartyState, version: CallId) -> None:
        """Keep this state as the one after this call, and discard all others."""
        self.versions.add(version, self._to_device(state))
        self.versions.commit(version)

    def _content(self, message: Message, depth: int) -> Any:
        """The message's content. With `init=own`, before a round has counted, the party's own
        initial weights replace the server's.
        """
        field = chain(self.algorithm)[depth].traits.start_weights or ""
        if not (self.party.own_start and message.first and hasattr(message.content, field)):
            return message.content
        weights = getattr(message.content, field)
        initial = self.party.task.init(self.party.first_key(self.root))
        return replace(
            message.content, **{field: weights | self._to_device(keep(initial, frozenset(weights)))}
        )


def _first_state(
    algorithm: AnyAlgorithm, party: Party, root: Key, to_device: Callable[[Any], Any]
) -> PartyState:
    """A party's state at the start of a run."""
    return PartyState(to_device(algorithm.init_party(party.first_key(root), party)), {})


def _samples_of(data: PartyData) -> dict[str, Tensor]:
    """The tensors of a party's samples, by what a method calls them."""
    parts = {"train": data.train, "validation": data.validation, "test": data.test}
    return {
        f"{part}.{name}": value
        for part, samples in parts.items()
        for name, value in (("x", samples.x), ("y", samples.y))
    }


def _mover_to(device: torch.device) -> Callable[[Any], Any]:
    """A function that moves a tree to a device. On the CPU it is there already."""
    return _same if device.type == "cpu" else partial(on_device, device=device)


def _same(tree: Any) -> Any:
    return tree


def hides_training_samples(algorithm: AnyAlgorithm) -> bool:
    """Whether a method adds noise to hide training samples. Nothing else that leaves a party, such
    as the figures of its calibrated model, may then depend on them.
    """
    return any(isinstance(part, Dp | Ldp) for part in chain(algorithm))


def _has_values(tree: Any) -> bool:
    """Whether a state contains anything but empty containers and None."""
    if isinstance(tree, dict):
        return any(map(_has_values, tree.values()))
    if is_record(tree):
        return any(map(_has_values, vars(tree).values()))
    return any(map(_has_values, tree)) if isinstance(tree, list | tuple) else tree is not None
