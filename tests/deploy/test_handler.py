"""A site's request handler against invalid and forbidden requests: it replies with one sentence,
computes nothing, and takes little memory.
"""

from __future__ import annotations

import json
import os
import tracemalloc
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from in_process_sites import Sites

from comity.base.key import Key
from comity.base.record import Cipher, Empty, Model, Sealed
from comity.deploy import handler as handler_module
from comity.deploy import messages as wire
from comity.deploy.data import site_settings
from comity.deploy.handler import FAULT, LOG, RequestHandler
from comity.deploy.messages import (
    REPLIES,
    Answered,
    Begin,
    Done,
    End,
    Evaluate,
    Failed,
    Introduce,
    Introduced,
    RunCall,
    pack,
    unpack,
)
from comity.deploy.site_store import SECRET, secret_of
from comity.engines import site as engine_site
from comity.metrics.evaluation import Answers
from comity.runs import config
from comity.runs.context import PartyInfo
from comity.wire.codec import encode

MODEL = "mlp2(width=8)"
SIZES = {"north": (30, 12), "east": (24, 11)}


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Sites:
    return Sites(tmp_path_factory.mktemp("sites"), SIZES)


class ScriptedServer:
    """A server that can send any request to the request handler of one site."""

    def __init__(
        self, sites: Sites, run: str, method: str = "fedavg", name: str = "north", **settings: Any
    ) -> None:
        self.handler = sites.handler(name, None)
        self.site = sites.site(name)
        self.run = run
        experiment_settings = {
            "algorithm": method,
            "model": MODEL,
            "rounds": 3,
            "test": "official",
            **settings,
        }
        self.settings = json.dumps(
            site_settings(config.experiment(experiment_settings)).model_dump(
                mode="json", exclude_none=True
            )
        )
        self.others = {n: sites.handler(n, None) for n in sites.names if n != name}
        self.name = name

    def say(self, head: Any, body: bytes = b"") -> Any:
        return unpack(self.handler.answer(pack(head, body)), REPLIES, 1 << 30)[0]

    def refused(self, head: Any, body: bytes = b"") -> str:
        """The sentence with which a request is refused."""
        reply = self.say(head, body)
        assert isinstance(reply, Failed), reply
        assert "\n" not in reply.why
        return reply.why

    def introduce(self, **changes: Any) -> Any:
        return self.say(
            replace(Introduce(self.run, self.settings, version("comity"), ""), **changes)
        )

    def begin(self) -> ScriptedServer:
        replies = {self.name: self.introduce()}
        request = pack(Introduce(self.run, self.settings, version("comity"), ""))
        replies |= {
            name: unpack(handler.answer(request), REPLIES, 1 << 30)[0]
            for name, handler in self.others.items()
        }
        self.replies = {name: replies[name] for name in sorted(replies)}
        self.head = Begin(
            self.run,
            {n: reply.said for n, reply in self.replies.items()},
            {n: reply.signed_key for n, reply in self.replies.items()},
        )
        assert self.say(self.head) == Done()
        task = self.handler._run.active.site.party.task  # type: ignore[union-attr]
        self.theta = task.init(Key.root(0))
        return self

    def call(self, call: Any = ("local", 0, 1, 0), **changes: Any) -> RunCall:
        return replace(RunCall(self.run, call, None, True, {}), **changes)

    @property
    def message(self) -> bytes:
        return encode(Model(self.theta))


@pytest.fixture
def server(sites: Sites, request: pytest.FixtureRequest) -> ScriptedServer:
    name = "".join(c for c in request.node.name if c.isalnum())[:60]
    return ScriptedServer(sites, name).begin()


def test_valid_call_is_answered(server: ScriptedServer) -> None:
    reply = server.say(server.call(), server.message)
    assert isinstance(reply, Answered)
    assert reply.steps == 3


GARBAGE = {
    "nothing": b"",
    "short": b"\x03",
    "noise": bytes(range(256)) * 4,
    "zeros": bytes(64),
    "huge head": (1 << 62).to_bytes(8, "little") + b"{}",
    "head beyond": (100).to_bytes(8, "little") + b"x" * 50,
    "pickle": b"\x80\x04\x95" + b"\x0b" * 100,
    "an answer": pack(Done()),
    "a message": pack(Model({"w": torch.ones(3)})),
    "a dict": pack({"run": "x"}),
    "a number": pack(3),
}


@pytest.mark.parametrize("what", GARBAGE)
def test_garbage_is_refused(what: str, server: ScriptedServer) -> None:
    reply, _ = unpack(server.handler.answer(GARBAGE[what]), REPLIES, 1 << 20)
    assert isinstance(reply, Failed)
    assert reply.why != FAULT  # it is refused, and causes no internal error
    assert server.say(server.call(), server.message).steps == 3


def test_truncated_requests_are_refused(server: ScriptedServer) -> None:
    request = pack(server.call(), server.message)
    for length in {
        *range(0, len(request), 97),
        *range(40),
        *range(len(request) - 20, len(request)),
    }:
        reply, _ = unpack(server.handler.answer(request[:length]), REPLIES, 1 << 20)
        assert isinstance(reply, Failed), length


def test_claimed_sizes_take_no_memory(server: ScriptedServer) -> None:
    header = {
        "__metadata__": {
            "tree": json.dumps({"r": "comity.base.record:Model", "v": [{"d": [["w", {"t": 0}]]}]})
        }
    }
    claims = [
        {"0": {"dtype": "F32", "shape": [1 << 28], "data_offsets": [0, 1 << 30]}},
        {"0": {"dtype": "F32", "shape": [1 << 28, 0], "data_offsets": [0, 0]}},
        {"0": {"dtype": "F32", "shape": [1 << 28], "data_offsets": [0, 16]}},
    ]
    bodies = []
    for claim in claims:
        text = json.dumps(header | claim).encode()
        bodies += [
            len(text).to_bytes(8, "little") + text + bytes(16),
            (1 << 30).to_bytes(8, "little") + text,
        ]
    tracemalloc.start()
    for body in bodies:
        assert "damaged or foreign" in server.refused(server.call(), body)
        assert isinstance(unpack(server.handler.answer(body), REPLIES, 1 << 20)[0], Failed)
    assert tracemalloc.get_traced_memory()[1] < 10_000_000
    tracemalloc.stop()


def test_message_above_the_limit_is_refused(sites: Sites, server: ScriptedServer) -> None:
    sites.change("north", {'message = "1 GB"': 'message = "20 kB"'})
    try:
        tracemalloc.start()
        request = pack(server.call(), bytes(5_000_000))
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        reply, _ = unpack(server.handler.answer(request), REPLIES, 1 << 20)
        assert tracemalloc.get_traced_memory()[1] - before < 1_000_000  # it was not copied
        tracemalloc.stop()
        assert isinstance(reply, Failed)
        assert "at most 20,000 bytes are allowed" in reply.why
    finally:
        sites.change("north", {'message = "20 kB"': 'message = "1 GB"'})


def test_large_sealed_messages_are_accepted() -> None:
    """Sealed messages are in the head of a call, which has no limit of its own."""
    blob = torch.zeros(70 << 20, dtype=torch.uint8)
    sealed: Sealed[Any] = Sealed(
        Cipher(0, 1, [1], torch.zeros(1, 60, dtype=torch.uint8), blob), 1, (1,)
    )
    head, _ = unpack(
        pack(RunCall("r", ("assist", 0, 1, 0), None, False, {0: sealed})), wire.REQUESTS, 10**9
    )
    assert head.inbox[0].size == 1


NOT_PARTY_FUNCTIONS = [
    "init_party",
    "round",
    "__init__",
    "__class__",
    "deployed_model",
    "message_for",
    "init_server",
    "loss",
    "averaged",
    "no such",
    "",
]


@pytest.mark.parametrize("name", NOT_PARTY_FUNCTIONS)
def test_methods_that_are_no_party_functions_are_refused(name: str, server: ScriptedServer) -> None:
    assert "has no party function" in server.refused(server.call((name, 0, 1, 0)), server.message)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (("local", 1, 1, 0), "no algorithm at depth 1"),
        (("local", -1, 1, 0), "no algorithm at depth -1"),
        (("local", 0, -1, 0), "round -1, which is none"),
        (("local", 0, 1, -1), "which is none"),
        (("local", 0, 5, 0), "round 5, and the run has 3"),
        (("local", 0, 10**18, 0), "and the run has 3"),
        (("local", 0, 1), "damaged or foreign"),
        (("local", "0", 1, 0), "damaged or foreign"),
    ],
)
def test_invalid_calls_are_refused(call: Any, words: str, server: ScriptedServer) -> None:
    head = object.__new__(RunCall)
    head.__dict__.update(vars(server.call()) | {"call": call})
    try:
        request = pack(head, server.message)
    except Exception:  # the codec does not encode values of wrong types: change the encoded bytes
        request = pack(server.call(("local", 0, 1, 0)), server.message)
        text = json.dumps([*call])
        old = b'\\"local\\", 0, 1, 0'
        replacement = text[1:-1].replace('"', '\\"').encode()
        length = int.from_bytes(request[:8], "little")
        inner = int.from_bytes(request[8:16], "little")
        body = request[16 : 16 + inner].replace(old, replacement)
        body += b" " * (-len(body) % 8)
        remainder = request[16 + inner : 8 + length]
        first = len(body).to_bytes(8, "little") + body + remainder
        request = len(first).to_bytes(8, "little") + first + server.message
    reply, _ = unpack(server.handler.answer(request), REPLIES, 1 << 20)
    assert isinstance(reply, Failed)
    assert words in reply.why


def messages(theta: dict[str, torch.Tensor]) -> dict[str, tuple[Any, str]]:
    name = sorted(theta)[0]
    tensor = theta[name]
    return {
        "nan": (Model(theta | {name: torch.full_like(tensor, float("nan"))}), "not finite"),
        "infinity": (Model(theta | {name: torch.full_like(tensor, float("inf"))}), "not finite"),
        "shape": (Model(theta | {name: tensor[..., :-1].clone()}), "where float32"),
        "dtype": (Model(theta | {name: tensor.double()}), "where float32"),
        "whole numbers": (Model(theta | {name: tensor.int()}), "where float32"),
        "extra": (Model(theta | {"backdoor": torch.ones(3)}), "which is not of the model"),
        "another record": (Empty(), "has no place in it"),
        "an introduction": (PartyInfo(1, 1, 1, [], False), "has no place in it"),
        "an evaluation": (Answers(torch.ones(1), torch.ones(1), None), "has no place in it"),
        "a dict": (theta, "should be Model"),
        "nothing": (None, "should be Model"),
    }


@pytest.mark.parametrize("what", messages({"w": torch.ones(2)}))
def test_invalid_messages_are_refused(
    what: str, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    content, words = messages(server.theta)[what]
    monkeypatch.setattr(
        engine_site.Site, "begin", lambda *_: pytest.fail("the party function was called")
    )
    assert words in server.refused(server.call(), encode(content))
    assert words in server.refused(Evaluate(server.run, None, 1, False, ""), encode(content))


def test_requests_for_another_run_are_refused(server: ScriptedServer) -> None:
    for head in (
        server.call(run="other"),
        Evaluate("other", None, 1, True, ""),
        End("other", 1, True),
        Begin("other", {}, {}),
    ):
        assert server.refused(head) == "north takes no part in that run."


@pytest.mark.parametrize("name", ["../up", "a/b", "", "a b", "x" * 65, ".", "a\n"])
def test_invalid_run_names_are_refused(name: str, server: ScriptedServer) -> None:
    reply = server.introduce(run=name)
    assert reply == Failed("A run's name must be letters and digits.")


def test_calls_before_the_run_begins_are_refused(sites: Sites) -> None:
    server = ScriptedServer(sites, "early")
    assert server.refused(server.call()) == "north takes no part in that run."
    assert isinstance(server.introduce(), Introduced)
    words = "north was called before the run has begun."
    assert server.refused(server.call()) == words
    assert server.refused(Evaluate("early", None, 1, True, ""), encode(Empty())) == words
    assert server.refused(wire.EvaluateAlone("early", 1)) == words


def test_repeated_begin_must_be_equal(server: ScriptedServer) -> None:
    """An equal repetition is accepted; one with other facts about this site is refused."""
    first = server.handler.answer(pack(server.call(), server.message))
    assert server.say(server.head) == Done()
    assert server.handler.answer(pack(server.call(), server.message)) == first
    lie = replace(server.head.parties["north"], train=5)
    head = replace(server.head, parties=server.head.parties | {"north": lie})
    assert server.refused(head) == "north said something else of itself than the server tells."
    alone = replace(server.head, parties={"east": server.head.parties["east"]})
    assert "something else" in server.refused(alone)


def test_introduction_with_other_settings_is_refused(server: ScriptedServer) -> None:
    other = json.dumps(json.loads(server.settings) | {"lr": 0.5})
    reply = server.introduce(settings=other)
    assert reply == Failed(f"Run {server.run} was begun with other settings at north.")
    assert isinstance(server.introduce(), Introduced)


@pytest.mark.parametrize(
    "settings", ["", "[]", "{", '{"algorithm": 3}', '{"nothing": 1}', "3", "[" * 20_000]
)
def test_invalid_settings_are_refused(settings: str, sites: Sites) -> None:
    reply = ScriptedServer(sites, "nosettings").introduce(settings=settings)
    assert isinstance(reply, Failed)
    assert "\n" not in reply.why


def test_other_schema_is_refused(sites: Sites) -> None:
    server = ScriptedServer(sites, "schemas")
    assert "follow another schema than the server's" in server.introduce(schema="abc").why


def test_file_in_the_settings_is_never_executed(sites: Sites, tmp_path: Path) -> None:
    file, mark = tmp_path / "mine.py", tmp_path / "ran"
    file.write_text(f"open({str(mark)!r}, 'w')\n")
    server = ScriptedServer(sites, "files")
    for name in ("algorithm", "model", "metric"):
        reply = server.introduce(
            settings=json.dumps(json.loads(server.settings) | {name: str(file)})
        )
        assert "runs no files that a run names" in reply.why
    assert not mark.exists()


MARKER = "the-secret-of-a-patient"


def test_error_in_a_party_function_does_not_leave_the_site(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise ValueError(MARKER)

    monkeypatch.setattr(engine_site.Site, "begin", fail)
    answer = server.handler.answer(pack(server.call(), server.message))
    assert unpack(answer, REPLIES, 1 << 20)[0] == Failed(FAULT)
    assert MARKER.encode() not in answer
    assert MARKER in (server.site / LOG).read_text()


def test_unwritable_log_does_not_prevent_a_reply(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handler_module, "LOG", "no/such/folder")
    assert server.say(server.call(), server.message).steps == 3


def test_replies_contain_no_paths_and_no_policy_text(sites: Sites, server: ScriptedServer) -> None:
    """Replies contain neither paths nor lines of the site policy."""
    policy_text = (server.site / "site.toml").read_text()
    try:
        sites.change("north", {"rounds = 1000": 'rounds = "seven"'})
        reason = server.refused(server.call(), server.message)
        assert reason == "The policy of this site cannot be read; the site's log says why."
        assert "must be a whole number, not 'seven'" in (server.site / LOG).read_text()
        (server.site / "site.toml").unlink()
        assert server.refused(server.call(), server.message) == reason
    finally:
        (server.site / "site.toml").write_text(policy_text)
    (server.site / "data").rename(server.site / "away")
    try:
        assert str(sites.folder) not in server.introduce().why
    finally:
        (server.site / "away").rename(server.site / "data")


POLICY_CHANGES: dict[str, tuple[dict[str, str], str]] = {
    "methods": ({'methods = ["*"]': 'methods = ["scaffold"]'}, "does not allow fedavg (methods)"),
    "never": ({"never = []": 'never = ["fedavg"]'}, "never takes part in fedavg (never)"),
    "kinds": ({'kinds = ["weights", ': "kinds = ["}, "(kinds: weights)"),
    "submitters": (
        {'submitters = ["*"]': "submitters = []"},
        "does not accept runs submitted by 'lead@comity' (submitters)",
    ),
    "rounds": ({"rounds = 1000": "rounds = 2"}, "2 rounds at most, not in 3 (rounds)"),
    "bytes": ({'bytes = "10 GB"': "bytes = 100"}, "may send 100 B (bytes)"),
    "budget": ({'bytes = "100 GB"': "bytes = 100"}, "may send 100 B (budget: bytes)"),
    "records": ({"records = 0\n": "records = 100\n"}, "fewer than 100 training samples (records)"),
    "epsilon": ({'epsilon = "inf"': "epsilon = 1"}, "(budget: epsilon)"),
}


@pytest.mark.parametrize("rule", POLICY_CHANGES)
def test_policy_change_applies_from_the_next_request(rule: str, sites: Sites) -> None:
    server = ScriptedServer(sites, f"changed{rule}").begin()
    assert server.say(server.call(), server.message).steps == 3
    policy_text = (server.site / "site.toml").read_text()
    try:
        sites.change("north", POLICY_CHANGES[rule][0])
        assert POLICY_CHANGES[rule][1] in server.refused(
            server.call(("local", 0, 2, 0)), server.message
        )
        if rule not in ("bytes", "budget"):  # an evaluation has fewer bytes
            assert POLICY_CHANGES[rule][1] in server.refused(
                Evaluate(server.run, None, 2, False, ""), server.message
            )
        assert isinstance(server.introduce(), Failed if rule != "bytes" else (Failed, Introduced))
    finally:
        (server.site / "site.toml").write_text(policy_text)
    server = ScriptedServer(sites, f"changed{rule}").begin()
    assert server.say(server.call(("local", 0, 2, 0)), server.message).steps == 3


def test_name_in_the_policy_must_be_that_of_the_certificate(sites: Sites, tmp_path: Path) -> None:
    handler = RequestHandler(sites.site("north"), "lead@comity", sites.root.identity("west"), None)
    reply, _ = unpack(
        handler.answer(
            pack(Introduce("names", ScriptedServer(sites, "names").settings, version("comity"), ""))
        ),
        REPLIES,
        1 << 20,
    )
    assert isinstance(reply, Failed)
    assert reply.why == "The certificate of north is made out to 'west'."


def test_invalid_stages_are_refused(server: ScriptedServer) -> None:
    assert "no stage" in server.refused(
        Evaluate(server.run, None, 1, False, "x\ny"), server.message
    )
    assert "round 9, and the run has 3" in server.refused(
        Evaluate(server.run, None, 9, False, ""), server.message
    )


def test_incomplete_secret_is_not_used(
    sites: Sites, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Noise that is drawn from a secret which a full disk truncated could be predicted."""

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        secret_of(tmp_path)
    monkeypatch.undo()
    secret = secret_of(tmp_path)
    assert len(secret) == 32
    assert secret_of(tmp_path) == secret
    assert (tmp_path / SECRET).stat().st_mode & 0o077 == 0
    (tmp_path / SECRET).write_bytes(secret[:7])
    with pytest.raises(Exception, match=r"secret .* is damaged"):
        secret_of(tmp_path)
