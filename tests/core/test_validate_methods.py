"""Every method's letters, replies and parcels through the gate, and as bytes of which no other
records are made.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from matrix import VARIANTS, run, tables, weights

from comity.base.call import CallId, EvaluationRequest, Message, PartyResult
from comity.base.record import unseal
from comity.core import Sealed
from comity.core.signature import party_functions
from comity.core.validate import MessageValidator
from comity.engines.engine import inboxes
from comity.engines.loop import LoopEngine
from comity.wire.codec import decode, encode
from comity.wire.sealing import Lock, SharedSecret

OPTIONS: dict[str, dict[str, Any]] = VARIANTS | {
    "adcol(aggregate=model,hidden=8)": {"bn": "params_only"},
    "adcol(disc=conv,sampling=0.5)": {},
    "fedufo(dynamic=fresh,stage_one=0)": {"bn": "none"},
    "fedufo(dynamic=last)": {"bn": "params_only"},
    "feduad(outputs=group,disc_state=local)": {"participation": 0.5},
    "fed-sps(mode=samples,peers=2)": {"bn": "none"},
    "fed-sps(collab_steps=2,tune=end,code_compat=true)": {"bn": "params_only"},
    "relay(aggregate=model,m_up=2,m_down=2)": {"bn": "params_only"},
    "relay(disc=external,begin=random)": {},
    "relay-p2p(m_up=2)": {},
    "fd(exclude_self=true)": {},
    "scaffold+dbe(cut=conv1)": {"bn": "none"},
    "fedrod": {"bn": "none"},
    "apfl": {"bn": "params_only"},
}


class Watched:
    """A loop engine whose every message goes through the gate and over a wire of bytes, and how
    many did.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.passed: Counter[str] = Counter()
        function, evaluate = LoopEngine.run, LoopEngine.evaluate
        locks: dict[int, Lock] = {}

        def validator(engine: LoopEngine, i: int) -> MessageValidator:
            site = engine.sites[i]
            return MessageValidator(site.algorithm, site.party.task, site.party.federation_size)

        def sent(message: Message, validator: MessageValidator) -> Message:
            return message._replace(
                content=decode(encode(message.content), records=validator.records)
            )

        def worked(
            engine: LoopEngine,
            call: CallId,
            messages: Mapping[int, Message],
            sealed_messages: Mapping[Any, Sealed],
        ) -> Iterator[Any]:
            if id(engine) not in locks:
                records = validator(engine, next(iter(messages))).records
                locks[id(engine)] = Lock(SharedSecret(os.urandom(32)), os.urandom(16), records)
            lock = locks[id(engine)]
            gates = {i: validator(engine, i) for i in messages}
            came = {i: sent(message, gates[i]) for i, message in messages.items()}
            for i, message in came.items():
                gates[i].check_message(call, message.content)
            opened = lock.open(inboxes(sealed_messages), call)
            for i, inbox in opened.items():
                for sealed in inbox.values():
                    gates[i].check_sealed_message(unseal(sealed))
                    self.passed["parcel"] += 1
            flat = {
                (src, dst): sealed for dst, inbox in opened.items() for src, sealed in inbox.items()
            }
            for i, answer in function(engine, call, came, flat):
                gates[i].check_reply(call, answer.reply)
                blob = encode(lock.close(answer.reply), sealed_messages=True)
                reply = decode(blob, sealed_messages=True, records=gates[i].records)
                gates[i].check_reply(call, reply)
                self.passed[call.function] += 1
                yield i, PartyResult(reply, *answer[1:])

        def evaluated(
            engine: LoopEngine, messages: Mapping[int, Message], look: EvaluationRequest
        ) -> Iterator[Any]:
            came = {i: sent(message, validator(engine, i)) for i, message in messages.items()}
            for i, message in came.items():
                validator(engine, i).check_evaluation_message(message.content)
            self.passed["evaluate"] += len(came)
            return evaluate(engine, came, look)

        patch.setattr(LoopEngine, "run", worked)
        patch.setattr(LoopEngine, "evaluate", evaluated)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


def test_all_that_methods_send_passes(text: str, watched: Watched, tmp_path: Path) -> None:
    result = run(text, tmp_path)
    known = {name for _, name in party_functions(result.job.algorithm)}
    assert watched.passed.keys() & known
    assert watched.passed.keys() <= known | {"parcel", "evaluate"}


def test_the_gate_changes_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plain = run("fedufo", tmp_path / "plain")
    Watched(monkeypatch)
    gated = run("fedufo", tmp_path / "gated")
    assert tables(gated.folder) == tables(plain.folder)
    for party, theta in weights(plain).items():
        assert all(torch.equal(value, weights(gated)[party][name]) for name, value in theta.items())


@pytest.mark.long
@pytest.mark.parametrize("text", OPTIONS)
def test_so_does_what_their_options_send(text: str, watched: Watched, tmp_path: Path) -> None:
    run(text, tmp_path, **OPTIONS[text])
    assert watched.passed.keys() - {"evaluate"}


@pytest.mark.sweep("adcol", "relay", "fedavg+dbe")
@pytest.mark.parametrize(
    "text",
    ["fedavg+dbe", "adcol(hidden=8)", "relay", "fedgen(gen_steps=5)", "fedbabu", "fedufo", "solo"],
)
def test_so_does_what_newcomers_get(text: str, watched: Watched, tmp_path: Path) -> None:
    run(text, tmp_path, newcomers=1, rounds=1)
    assert watched.passed["warm_up"] == 1
