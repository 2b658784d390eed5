"""Messages, replies and sealed messages of every method pass validation, also after encoding and
decoding.
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


class CheckedEngine:
    """Patches the loop engine: every message is encoded, decoded and validated, and counted in
    `passed`.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.passed: Counter[str] = Counter()
        function, evaluate = LoopEngine.run, LoopEngine.evaluate
        locks: dict[int, Lock] = {}

        def validator(engine: LoopEngine, i: int) -> MessageValidator:
            site = engine.sites[i]
            return MessageValidator(site.algorithm, site.party.task, site.party.federation_size)

        def through_codec(message: Message, validator: MessageValidator) -> Message:
            return message._replace(
                content=decode(encode(message.content), records=validator.records)
            )

        def checked_run(
            engine: LoopEngine,
            call: CallId,
            messages: Mapping[int, Message],
            sealed_messages: Mapping[Any, Sealed],
        ) -> Iterator[Any]:
            if id(engine) not in locks:
                records = validator(engine, next(iter(messages))).records
                locks[id(engine)] = Lock(SharedSecret(os.urandom(32)), os.urandom(16), records)
            lock = locks[id(engine)]
            validators = {i: validator(engine, i) for i in messages}
            received_messages = {
                i: through_codec(message, validators[i]) for i, message in messages.items()
            }
            for i, message in received_messages.items():
                validators[i].check_message(call, message.content)
            unsealed_inboxes = lock.open(inboxes(sealed_messages), call)
            for i, inbox in unsealed_inboxes.items():
                for sealed in inbox.values():
                    validators[i].check_sealed_message(unseal(sealed))
                    self.passed["sealed"] += 1
            flat = {
                (src, dst): sealed
                for dst, inbox in unsealed_inboxes.items()
                for src, sealed in inbox.items()
            }
            for i, answer in function(engine, call, received_messages, flat):
                validators[i].check_reply(call, answer.reply)
                blob = encode(lock.close(answer.reply), sealed_messages=True)
                reply = decode(blob, sealed_messages=True, records=validators[i].records)
                validators[i].check_reply(call, reply)
                self.passed[call.function] += 1
                yield i, PartyResult(reply, *answer[1:])

        def checked_evaluate(
            engine: LoopEngine, messages: Mapping[int, Message], request: EvaluationRequest
        ) -> Iterator[Any]:
            received_messages = {
                i: through_codec(message, validator(engine, i)) for i, message in messages.items()
            }
            for i, message in received_messages.items():
                validator(engine, i).check_evaluation_message(message.content)
            self.passed["evaluate"] += len(received_messages)
            return evaluate(engine, received_messages, request)

        patch.setattr(LoopEngine, "run", checked_run)
        patch.setattr(LoopEngine, "evaluate", checked_evaluate)


@pytest.fixture
def checked_engine(monkeypatch: pytest.MonkeyPatch) -> CheckedEngine:
    return CheckedEngine(monkeypatch)


def test_messages_of_every_method_pass(
    text: str, checked_engine: CheckedEngine, tmp_path: Path
) -> None:
    result = run(text, tmp_path)
    function_names = {name for _, name in party_functions(result.job.algorithm)}
    assert checked_engine.passed.keys() & function_names
    assert checked_engine.passed.keys() <= function_names | {"sealed", "evaluate"}


def test_validation_changes_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plain = run("fedufo", tmp_path / "plain")
    CheckedEngine(monkeypatch)
    validated_run = run("fedufo", tmp_path / "validated")
    assert tables(validated_run.folder) == tables(plain.folder)
    for party, theta in weights(plain).items():
        assert all(
            torch.equal(value, weights(validated_run)[party][name]) for name, value in theta.items()
        )


@pytest.mark.long
@pytest.mark.parametrize("text", OPTIONS)
def test_messages_with_options_pass(
    text: str, checked_engine: CheckedEngine, tmp_path: Path
) -> None:
    run(text, tmp_path, **OPTIONS[text])
    assert checked_engine.passed.keys() - {"evaluate"}


@pytest.mark.sweep("adcol", "relay", "fedavg+dbe")
@pytest.mark.parametrize(
    "text",
    ["fedavg+dbe", "adcol(hidden=8)", "relay", "fedgen(gen_steps=5)", "fedbabu", "fedufo", "solo"],
)
def test_messages_to_newcomers_pass(
    text: str, checked_engine: CheckedEngine, tmp_path: Path
) -> None:
    run(text, tmp_path, newcomers=1, rounds=1)
    assert checked_engine.passed["warm_up"] == 1
