"""Runs between sites with secure aggregation: the same means, no single reply on the wire, losses at
every step, restarts, refusals.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from in_process_sites import Handed, Sites, ended, watched
from matrix import compositions
from secure_sites import lose, request_of, server_tensors
from sweeps import over_methods

from comity import algorithms
from comity.base.record import Params, leaves
from comity.core.validate import MessageValidator
from comity.deploy import site_results
from comity.deploy.messages import RunCall, SecureStep
from comity.deploy.policy import SitePolicy
from comity.deploy.secure_server import EXPERIMENTAL
from comity.deploy.secure_terms import check_can_be_secure, flat_reply
from comity.deploy.server import FAILURE, SUMS
from comity.deploy.session import content_of
from comity.engines.site import Site
from comity.errors import UsageError
from comity.privacy.secagg.site import STEPS
from comity.runs import config
from comity.runs.folder import RunFolder
from comity.runs.run_warnings import warning_texts
from comity.runs.tables import LEDGER
from comity.training.task import LearningTask

SIZES = {"north": (31, 12), "east": (23, 9), "south": (26, 7), "west": (40, 9)}
MOST = 1 << 30
USUAL: dict[str, Any] = {
    "model": "linear",
    "rounds": 2,
    "test": "official",
    "lr": 0.05,
    "batch": 16,
}
SECURE = USUAL | {"secure_aggregation": True}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_results, "export", lambda *_: [])
    monkeypatch.setattr(site_results, "report", lambda *_, **__: None)
    monkeypatch.setenv("COMITY_CHECKPOINT_SECONDS", "0")


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Sites:
    """Four sites of which one may collude: three must take part to the end."""
    return Sites(tmp_path_factory.mktemp("sites"), SIZES)


def absent_sites(folder: Path) -> set[tuple[str, int]]:
    return {(row.party, row.round) for row in RunFolder(folder).read_absences()}


# The same means, and nothing in the clear.


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedavg+serveropt"])
def test_the_mean_is_that_of_a_run_without_it(method: str, sites: Sites) -> None:
    plain_run = sites.run(method, f"plain{method[-3:]}", **USUAL)
    secure_run = sites.run(method, f"secure{method[-3:]}", **SECURE)
    summary = ended(secure_run)
    ended(plain_run)
    assert summary["absent"] == {}
    assert summary["discarded"] == []
    assert warning_texts(summary, "during") == [EXPERIMENTAL]
    for one, other in zip(server_tensors(plain_run), server_tensors(secure_run), strict=True):
        assert (one - other).abs().max() <= 1e-6
    assert not list((secure_run / SUMS).glob("*"))  # the checkpoint contains them


def can_be_secure(method: str) -> bool:
    try:
        check_can_be_secure(algorithms.compose(method, {}), method)
    except UsageError:
        return False
    return method != "solo" and "+dp" not in method  # the noise of two runs differs


@pytest.mark.parametrize("method", over_methods(list(filter(can_be_secure, compositions()))))
def test_every_method_that_can_have_it(method: str, sites: Sites) -> None:
    name = "".join(filter(str.isalnum, method))
    settings = {"model": "mlp2(width=8)", "rounds": 1}
    plain_run = sites.run(method, f"each{name}", **USUAL | settings)
    secure_run = sites.run(method, f"sum{name}", **SECURE | settings)
    assert ended(secure_run)["absent"] == ended(plain_run)["absent"] == {}
    for one, other in zip(server_tensors(plain_run), server_tensors(secure_run), strict=True):
        assert (one - other).abs().max() <= 1e-6


@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
def test_no_reply_crosses_in_the_clear(
    method: str, sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes of every tensor in every reply are searched in everything that was carried. In a
    run without secure aggregation the search finds them.
    """
    replies: list[Params] = []
    check = MessageValidator.check_reply

    def keep(validator: Any, call: Any, reply: Any) -> None:
        if reply is not None and not any(leaf.is_meta for leaf in leaves(reply)):
            replies.append(flat_reply(reply))
        check(validator, call, reply)

    monkeypatch.setattr(MessageValidator, "check_reply", keep)

    def carried(run: str, settings: Mapping[str, Any]) -> list[bool]:
        replies.clear()
        transport = sites.transport()
        seen = watched(transport)
        ended(sites.run(method, run, transport, **settings))
        content = b"".join(message for _, message in seen)
        return [
            value.contiguous().numpy().tobytes() in content
            for reply in replies
            for value in reply.values()
        ]

    in_the_clear = carried(f"clear{method}", USUAL)
    assert in_the_clear
    assert all(in_the_clear)
    hidden = carried(f"hidden{method}", SECURE)
    assert len(hidden) * 2 == len(in_the_clear)  # the server reads no reply
    assert not any(hidden)


def test_ledgers_of_server_and_sites_agree(sites: Sites) -> None:
    folder = sites.run("fedavg", "ledgers", **SECURE)
    summary = ended(folder)
    plain_folder = sites.run("fedavg", "plainledgers", **USUAL)
    by_server = LEDGER.read(folder)
    for name in sites.names:
        own = LEDGER.read(sites.site(name) / "runs" / "ledgers")
        rows = [row for row in by_server if name in (row.src, row.dst) and row.call == "local"]
        assert sorted(rows) == sorted(row for row in own if row.call == "local")
    more = summary["bytes"]["up"] - ended(plain_folder)["bytes"]["up"]
    assert more > 0


def test_dp_of_records_is_charged_as_without_it(sites: Sites) -> None:
    pytest.importorskip("dp_accounting")
    method = "fedavg+dp(noise=2.0)"
    plain_folder = sites.run(method, "plaindp", **USUAL)
    folder = sites.run(method, "securedp", **SECURE)
    assert ended(folder)["privacy"] == ended(plain_folder)["privacy"]
    privacy = "privacy.csv"
    for name in sites.names:
        runs = sites.site(name) / "runs"
        assert (runs / "securedp" / privacy).read_text() == (runs / "plaindp" / privacy).read_text()


def test_clipping_is_reported(sites: Sites) -> None:
    folder = sites.run("fedavg", "clipped", **SECURE | {"secure_aggregation_range": 0.01})
    warnings = warning_texts(ended(folder), "during")
    assert (
        "Values of north beyond 0.01 were clipped for secure aggregation: use a larger"
        " --secure-aggregation-range." in warnings
    )


def test_a_reply_that_is_not_finite_is_left_out(
    sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Site.run

    def ruin(site: Any, call: Any, *rest: Any) -> Any:
        result = run(site, call, *rest)
        if site.party.name == "east" and call.round == 1:
            next(iter(result.reply.theta.values())).fill_(torch.nan)
        return result

    monkeypatch.setattr(Site, "run", ruin)
    folder = sites.run("fedavg", "nonfinite", **SECURE)
    rows = RunFolder(folder).read_absences()
    assert [(row.party, row.round, row.how) for row in rows] == [("east", 1, "nonfinite")]
    assert ended(folder)["discarded"] == []


# Losses.


@pytest.mark.parametrize("how", ["offline", "lost"])
@pytest.mark.parametrize("step", STEPS)
def test_a_site_that_is_lost_in_a_step(step: str, how: str, sites: Sites) -> None:
    """Before its masked reply arrives it is absent; after that its reply is in the sum."""
    transport = sites.transport()
    lose(transport, "south", step, how)
    run = f"{step}{how}"
    folder = sites.run("scaffold", run, transport, **SECURE)
    assert ended(folder)["discarded"] == []
    is_absent = step in ("keys", "shares", "masked")
    assert absent_sites(folder) == ({("south", 1)} if is_absent else set())
    absences = {"absent": str(folder / "absences.csv")} if is_absent else {}
    pooled = sites.pooled("scaffold", sites.folder / f"pooled{run}", **USUAL, **absences)
    for one, other in zip(server_tensors(pooled.folder), server_tensors(folder), strict=True):
        assert (one - other).abs().max() <= 1e-6


def test_a_round_with_too_few_sites_is_discarded(sites: Sites) -> None:
    transport = sites.transport()
    transport.lost = lambda name, request: (
        "lost"
        if name in ("south", "west")
        and isinstance(head := request_of(request), SecureStep)
        and (head.call[2], head.step) == (1, "masked")
        else ""
    )
    folder = sites.run("scaffold", "toofew", transport, **SECURE)
    summary = ended(folder)
    assert [row["round"] for row in summary["discarded"]] == [1]
    assert absent_sites(folder) == {(name, 1) for name in sites.names}
    assert (
        "Secure aggregation failed in round 1: 2 sites sent a masked reply, and 3 must (threshold):"
        " the round has no sum." in warning_texts(summary, "during")
    )


# Restarts.


class Killed(BaseException):
    """The server's process ends here."""


class Fatal(Handed):
    """A transport that is killed with its server at a request: before it is sent, or after all have
    answered.
    """

    def __init__(self, sites: Sites, kind: str, answered: bool) -> None:
        super().__init__({name: sites.handler(name) for name in sites.names})
        self.kind = kind
        self.answered = answered
        self.is_dead = False

    def ask(
        self, requests: Mapping[str, bytes], seconds: float
    ) -> Iterator[tuple[str, bytes | None]]:
        if not requests:
            return
        head = request_of(content_of(next(iter(requests.values()))))
        kind = getattr(head, "step", type(head).__name__)
        in_round_2 = getattr(head, "round", getattr(head, "call", (0, 0, 0))[2]) == 2
        if self.is_dead or (kind == self.kind and in_round_2):
            if self.answered and not self.is_dead:
                list(super().ask(requests, seconds))
            self.is_dead = True
            raise Killed
        yield from super().ask(requests, seconds)


@pytest.mark.parametrize(
    ("kind", "answered"),
    [("SecureCall", True), ("shares", True), ("masked", False), ("Evaluate", False)],
)
def test_a_server_that_is_killed_goes_on_to_the_same_tables(
    kind: str, answered: bool, sites: Sites
) -> None:
    """Before the sites mask, the steps are repeated. After the sum, it is read from the disk."""
    right = sites.run("scaffold", f"right{kind}", **SECURE)
    run = f"killed{kind}"
    with pytest.raises(Killed):
        sites.run("scaffold", run, Fatal(sites, kind, answered), **SECURE)
    folder = sites.run("scaffold", run, **SECURE)
    assert ended(folder)["discarded"] == []
    for name in ("metrics.csv", "ledger.csv"):
        assert (folder / name).read_text() == (right / name).read_text(), name


@pytest.mark.parametrize(("kind", "answered"), [("masked", True), ("reveal", False)])
def test_a_server_that_is_killed_after_the_masking_discards_the_round(
    kind: str, answered: bool, sites: Sites
) -> None:
    run = f"masked{kind}"
    with pytest.raises(Killed):
        sites.run("scaffold", run, Fatal(sites, kind, answered), **SECURE | {"rounds": 3})
    folder = sites.run("scaffold", run, **SECURE | {"rounds": 3})
    summary = ended(folder)
    assert [row["round"] for row in summary["discarded"]] == [2]
    assert any("already sent a masked reply" in text for text in warning_texts(summary, "during"))


def test_a_site_with_another_key_cannot_return_to_the_run(sites: Sites) -> None:
    with pytest.raises(Killed):
        sites.run("fedavg", "otherkey", Fatal(sites, "Evaluate", False), **SECURE)
    own = sites.root.lasting.pop("east")
    folder = sites.run("fedavg", "otherkey", **SECURE)
    sites.root.lasting["east"] = own
    assert "has another key than when this run began" in (folder / FAILURE).read_text()


# Refusals.


def failure(sites: Sites, method: str, run: str, **settings: Any) -> str:
    folder = sites.run(method, run, **SECURE | settings)
    return (folder / FAILURE).read_text()


@pytest.mark.parametrize(
    ("method", "why"),
    [
        ("fedavg+median", "it does more with single replies than average"),
        ("fedavg+krum", "it does more with single replies than average"),
        ("relay", "it does more with single replies than average"),
        ("fedavg+dbe", "the server reads what each party replies to judge"),
        ("fedmeta", "the server reads what each party replies to hand_over"),
        ("fedavg+dp(level=party,noise=0)", "its noise above 0"),
        ("fedavg+dp(level=party,noise=1)+serveropt", "must be the last wrapper"),
    ],
)
def test_methods_that_need_single_replies_are_refused(method: str, why: str) -> None:
    with pytest.raises(UsageError, match="cannot have secure aggregation") as refusal:
        check_can_be_secure(algorithms.compose(method, {}), method)
    assert why in str(refusal.value)


def test_a_refused_method_ends_the_run_with_the_sentence(sites: Sites) -> None:
    text = failure(sites, "fedavg+median", "median")
    assert "fedavg+median cannot have secure aggregation" in text


def test_other_settings_are_refused() -> None:
    with pytest.raises(UsageError, match=r"participation must be 1, not 0\.5"):
        config.experiment({"secure_aggregation": True, "participation": 0.5})


def test_integers_are_refused(sites: Sites, monkeypatch: pytest.MonkeyPatch) -> None:
    def counting(task: LearningTask) -> dict[str, torch.dtype]:
        return dict.fromkeys(task.shapes, torch.float32) | {"bn~count": torch.int64}

    monkeypatch.setattr(LearningTask, "dtypes", property(counting))
    text = failure(sites, "fedavg", "integers")
    assert "bn~count of linear holds integers: use --bn none, or fedbn." in text


def test_two_sites_are_too_few(tmp_path: Path) -> None:
    two = Sites(tmp_path, {"north": (31, 12), "east": (23, 9)})
    text = failure(two, "fedavg", "two")
    assert "at least 3 sites must take part" in text
    for name in two.names:
        two.change(name, {"colluders = 1": "colluders = 0"})
    folder = two.run("fedavg", "trusting", **SECURE)
    assert ended(folder)["discarded"] == []


# The site policy.


@pytest.fixture
def strict_sites(tmp_path: Path) -> Sites:
    return Sites(tmp_path, {"north": (31, 12), "east": (23, 9), "south": (26, 7)})


ALLOWED = 'secure_aggregation = "allowed"'


def test_a_site_that_never_takes_part(strict_sites: Sites) -> None:
    strict_sites.change("north", {ALLOWED: 'secure_aggregation = "never"'})
    folder = strict_sites.run("fedavg", "never", **SECURE)
    text = (folder / FAILURE).read_text()
    assert "at least 3 sites must take part" in text  # without north there are two
    ended(strict_sites.run("fedavg", "without", **USUAL))


@pytest.mark.parametrize("method", ["fedavg", "fedavg+median", "relay"])
def test_a_site_that_requires_it(method: str, strict_sites: Sites) -> None:
    for name in strict_sites.names:
        strict_sites.change(name, {ALLOWED: 'secure_aggregation = "required"'})
    folder = strict_sites.run(method, "required", **USUAL)
    text = (folder / FAILURE).read_text()
    assert "secure aggregation" in text
    assert not list(strict_sites.site("north").glob("runs/*"))
    if method == "fedavg":
        ended(strict_sites.run(method, "asrequired", **SECURE))
        ended(strict_sites.run("solo", "alone", **USUAL))


def test_the_strictest_threshold_of_all_sites_counts(
    sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    sites.change("east", {"threshold = 0.5": "threshold = 1.0"})
    try:
        transport = sites.transport()
        lose(transport, "south", "masked", "lost")
        folder = sites.run("fedavg", "strictest", transport, **SECURE)
    finally:
        sites.change("east", {"threshold = 1.0": "threshold = 0.5"})
    assert [row["round"] for row in ended(folder)["discarded"]] == [1]


@pytest.mark.parametrize("text", ['"often"', "true"])
def test_an_unknown_value_in_the_policy(text: str, strict_sites: Sites) -> None:
    strict_sites.change("north", {ALLOWED: f"secure_aggregation = {text}"})
    with pytest.raises(UsageError, match="must be 'allowed', 'required' or 'never', not"):
        SitePolicy.read(strict_sites.site("north"))


def test_a_simulation_is_refused(sites: Sites) -> None:
    with pytest.raises(UsageError, match="add --federation, or leave it out"):
        sites.pooled("fedavg", sites.folder / "simulated", **SECURE)


def test_sites_answer_in_the_clear_only_where_nothing_leaves(sites: Sites) -> None:
    """fedbabu's last training replies nothing, and its rounds go through secure aggregation."""
    transport = sites.transport()
    seen = watched(transport)
    folder = sites.run(
        "fedbabu(finetune_epochs=1)", "babu", transport, **SECURE | {"model": "mlp2(width=8)"}
    )
    assert ended(folder)["discarded"] == []
    heads = []
    for _, message in seen:
        try:
            heads.append(request_of(message))
        except Exception:
            continue  # an answer
    functions = {head.call[0] for head in heads if isinstance(head, RunCall)}
    assert functions == {"tune"}
