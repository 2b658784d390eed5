"""Initial weights that a researcher gives with a run between sites: each site is sent the file once,
checks it against what the researcher signed, and accepts only what its policy allows.
"""

from __future__ import annotations

import json
import pickle
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from in_process_sites import OPEN, Handed, Sites, ended, same_as_planned, watched
from safetensors.torch import save, save_file
from small_encoder import FakeLibrary, Small

from comity.deploy.data import site_settings
from comity.deploy.flare.startup_kits import LEAD
from comity.deploy.handler import LOG
from comity.deploy.job_submission import SubmittedJob
from comity.deploy.messages import (
    REPLIES,
    REQUESTS,
    Begin,
    Introduce,
    TakeWeights,
    pack,
    unpack,
)
from comity.deploy.server import FAILURE
from comity.deploy.site_results import measure
from comity.deploy.transport import Aborted
from comity.disclosure import disclose
from comity.errors import UsageError
from comity.models import encoders
from comity.models.referenced_weights import INITIAL_WEIGHTS, WeightsReference
from comity.runs import config
from comity.runs.folder import RunFolder

SIZES = {"north": (47, 12), "east": (23, 9), "south": (34, 17)}
ALLOWED = {"initial_weights = 0": 'initial_weights = "1 MB"'}
USUAL: dict[str, Any] = {"rounds": 2, "lr": 0.05}
FROZEN: dict[str, Any] = {"model": "torchvision(name=small,freeze=true)", "cache": False} | USUAL


@pytest.fixture(autouse=True)
def _small_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoders, "_imported", lambda *names: FakeLibrary())


@pytest.fixture
def sites(tmp_path: Path) -> Sites:
    return Sites(tmp_path / "sites", SIZES, OPEN | ALLOWED | {"export = true": "export = false"})


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    """A file with the weights of an encoder, as a researcher has them."""
    torch.manual_seed(3)
    torch.save(Small().state_dict(), tmp_path / "encoder.pt")
    return tmp_path / "encoder.pt"


def submitted(sites: Sites, out: Path, method: str, **settings: Any) -> SubmittedJob:
    """A run as the researcher submits it."""
    (sites.folder / "hub" / LEAD).mkdir(exist_ok=True)
    experiment = config.experiment({"algorithm": method} | settings)
    return SubmittedJob.new(sites.folder / "hub", experiment, out, 60, 1)


def run(sites: Sites, job: SubmittedJob, transport: Handed | None = None) -> Path:
    """The folder of a submitted run at the server, after it has been conducted."""
    settings = {name: value for name, value in job.settings.items() if name != "algorithm"}
    return sites.run(job.settings["algorithm"], job.run, transport, **settings)


def failure(folder: Path) -> str:
    return (folder / FAILURE).read_text(encoding="utf-8")


def received(sites: Sites, name: str, job: SubmittedJob) -> list[int]:
    """The bytes of initial weights that a site received, by its own ledger."""
    ledger = RunFolder(sites.site(name) / "runs" / job.run).read_ledger()
    return [row.bytes for row in ledger if row.call == "weights"]


def without_weights(rows: list[Any]) -> list[Any]:
    return [row for row in rows if row.call != "weights"]


@pytest.mark.parametrize("method", ["fedavg", "fedproto", "scaffold+dbe"])
def test_frozen_encoder_reaches_the_sites_once(
    method: str, sites: Sites, tmp_path: Path, encoder: Path
) -> None:
    model = f"torchvision(name=small,freeze=true,weights={encoder})"
    job = submitted(sites, tmp_path / "out", method, **FROZEN | {"model": model})
    assert "encoder.pt" not in str(job.settings)
    folder = run(sites, job)
    (start,) = ended(folder)["initial_weights"]
    assert start["frozen"] == ["encoder.net.conv1.weight", "encoder.net.conv1.bias"]
    assert not start["unfilled"]
    file = folder / INITIAL_WEIGHTS
    ledger = RunFolder(folder).read_ledger()
    to_sites = [row for row in ledger if row.call == "weights"]
    assert {row.dst: (row.round, row.kind, row.bytes) for row in to_sites} == dict.fromkeys(
        SIZES, (0, "setup", file.stat().st_size)
    )
    for name in SIZES:
        own = sites.site(name) / "runs" / job.run / INITIAL_WEIGHTS
        assert own.read_bytes() == file.read_bytes()
        assert not own.stat().st_mode & 0o077
        assert received(sites, name, job) == [file.stat().st_size]
    pooled = sites.pooled(method, tmp_path / "pooled", **FROZEN | {"model": model})
    assert (folder / "metrics.csv").read_text() == (pooled.folder / "metrics.csv").read_text()
    in_simulation = RunFolder(pooled.folder).read_ledger()
    assert without_weights(ledger) == in_simulation


def test_trained_weights_start_from_the_file(sites: Sites, tmp_path: Path) -> None:
    """SOLO sends nothing, so the file is the only way in which its weights can arrive."""
    values = {"fc1.weight": torch.full((200, 64), 0.01), "fc3.bias": torch.arange(10.0)}
    save_file(values, tmp_path / "start.safetensors")
    settings = {"model": "mlp2", "weights": str(tmp_path / "start.safetensors")} | USUAL
    folder = run(sites, submitted(sites, tmp_path / "out", "solo", **settings))
    assert ended(folder)["initial_weights"][0]["kept"] == ["fc1.weight", "fc3.bias"]
    pooled = sites.pooled("solo", tmp_path / "pooled", **settings)
    assert (folder / "metrics.csv").read_text() == (pooled.folder / "metrics.csv").read_text()
    drawn = sites.pooled("solo", tmp_path / "drawn", **{"model": "mlp2"} | USUAL)
    assert (folder / "metrics.csv").read_text() != (drawn.folder / "metrics.csv").read_text()


def test_new_site_refuses_initial_weights(sites: Sites, tmp_path: Path, encoder: Path) -> None:
    sites.change("north", {'initial_weights = "1 MB"': "initial_weights = 0"})
    sites.change("east", {'initial_weights = "1 MB"': 'initial_weights = "100 B"'})
    sites.change("south", {'message = "1 GB"': 'message = "8 kB"'})
    settings = FROZEN | {"weights": str(encoder)}
    job = submitted(sites, tmp_path / "out", "fedavg", **settings)
    message = failure(run(sites, job))
    size = (sites.folder / "hub" / "runs" / job.run / INITIAL_WEIGHTS).stat().st_size
    assert 16_000 < size < 25_000
    assert (
        "north accepts no initial weights with a run. Its operator can allow them: write"
        ' initial_weights = "30 kB" under [allow] in site.toml (initial_weights).'
    ) in message
    assert "east accepts 100 B of initial weights at most, not 20.7 kB" in message
    assert "south receives messages of 8 kB at most" in message
    for name in SIZES:
        assert not (sites.site(name) / "runs" / job.run / INITIAL_WEIGHTS).exists()


def test_weights_other_than_the_signed_ones_are_refused(
    sites: Sites, tmp_path: Path, encoder: Path
) -> None:
    """The server replaces the file on its disk, and the request on its way."""
    job = submitted(sites, tmp_path / "out", "fedavg", **FROZEN | {"weights": str(encoder)})
    file = job.folder.path / INITIAL_WEIGHTS
    content = file.read_bytes()
    file.write_bytes(content[:-4] + b"\0\0\0\0")
    assert "are not those that the run's settings name" in failure(run(sites, job))
    file.write_bytes(content)

    transport = sites.transport(server=None)
    for handler in transport.desks.values():
        answer = handler.answer

        def changed(request: bytes, answer: Any = answer) -> bytes:
            head, body = unpack(request, REQUESTS, len(request))
            if isinstance(head, TakeWeights):
                request = pack(head, body[:-4] + b"\0\0\0\0")
            return answer(request)

        handler.answer = changed
    message = failure(run(sites, job, transport))
    assert "did not take the initial weights: The initial weights are not those" in message
    for name in SIZES:
        assert not (sites.site(name) / "runs" / job.run / INITIAL_WEIGHTS).exists()


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("/tmp/evil-weights"),)


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps({"conv1.weight": Evil()}),
        b"\xff" * 64,
        save({"other": torch.zeros(3)}),
        save({"conv1.weight": torch.full((4, 3, 3, 3), torch.nan)}),
        save({"conv1.weight": torch.zeros(4, 3, 9, 9)}),
    ],
    ids=["pickle", "noise", "other names", "nan", "other shape"],
)
def test_site_takes_nothing_but_tensors_that_fit(
    content: bytes, sites: Sites, tmp_path: Path
) -> None:
    """Whatever a researcher signs, a site reads it as safetensors, and says what is wrong."""
    settings = FROZEN | {"weights": str(WeightsReference.of(content))}
    name = "bad"
    for site in SIZES:
        handler = sites.handler(site, server=None)
        introduced = handler.answer(_introduction(name, settings))
        assert unpack(introduced, REPLIES, len(introduced))[0].needs_weights
        handler.answer(pack(TakeWeights(name), content))
        reply = handler.answer(_beginning(name, introduced))
        assert b"Failed" in reply
        log = (sites.site(site) / LOG).read_text()
        assert "failed:" not in log, log
        assert "initial_weights.safetensors" in log.splitlines()[-1]
    assert not Path("/tmp/evil-weights").exists()


def _introduction(name: str, settings: dict[str, Any]) -> bytes:
    experiment = site_settings(config.experiment({"algorithm": "fedavg"} | settings))
    dumped = json.dumps(experiment.model_dump(mode="json", exclude_none=True))
    return pack(Introduce(name, dumped, version("comity"), ""))


def _beginning(name: str, introduced: bytes) -> bytes:
    head, _ = unpack(introduced, REPLIES, len(introduced))
    party = head.signed_key.name
    return pack(Begin(name, {party: head.said}, {party: head.signed_key}))


def test_weights_without_a_reference_in_the_settings_are_refused(sites: Sites) -> None:
    handler = sites.handler("north", server=None)
    handler.answer(_introduction("none", FROZEN))
    reply = handler.answer(pack(TakeWeights("none"), b"x" * 100))
    assert b"has no initial weights that are sent" in reply
    assert not (sites.site("north") / "runs" / "none" / INITIAL_WEIGHTS).exists()


def test_resumed_run_does_not_send_them_again(
    sites: Sites, tmp_path: Path, encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMITY_CHECKPOINT_SECONDS", "0")
    job = submitted(sites, tmp_path / "out", "fedavg", **FROZEN | {"weights": str(encoder)})
    transport = sites.transport()

    def stop(name: str, request: bytes) -> str:
        head, _ = unpack(request, REQUESTS, len(request))
        if type(head).__name__ == "RunCall" and head.call[2] == 2:
            raise Aborted("stopped")
        return ""

    transport.lost = stop
    folder = run(sites, job, transport)
    assert RunFolder(folder).read_summary() is None
    again = sites.transport()
    seen = watched(again)
    run(sites, job, again)
    ended(folder)
    size = (folder / INITIAL_WEIGHTS).stat().st_size
    assert all(len(message) < size for _, message in seen)
    assert [received(sites, name, job) for name in sorted(SIZES)] == [[size]] * 3
    same = sites.pooled("fedavg", tmp_path / "pooled", **FROZEN | {"weights": str(encoder)})
    assert (folder / "metrics.csv").read_text() == (same.folder / "metrics.csv").read_text()


def test_two_files_of_weights_are_one_too_many(sites: Sites, tmp_path: Path, encoder: Path) -> None:
    model = f"torchvision(name=small,weights={encoder})"
    with pytest.raises(UsageError, match="leave out one of the two"):
        submitted(sites, tmp_path / "out", "fedavg", model=model, weights=str(encoder))
    assert not (tmp_path / "out").exists()


def test_site_opens_the_run_and_its_page_tells_of_the_weights(
    sites: Sites, tmp_path: Path, encoder: Path
) -> None:
    job = submitted(sites, tmp_path / "out", "fedavg", **FROZEN | {"weights": str(encoder)})
    folder = run(sites, job)
    ended(folder)
    own = RunFolder(sites.site("north") / "runs" / job.run)
    assert measure(sites.site("north"), own, samples=20, mdl=None)["party"] == "north"
    for place in (own.path, folder):
        page = disclose(place, "north")[0].read_text(encoding="utf-8")
        assert "Initial weights" in page
        assert job.settings["weights"].split(":")[1][:16] in page
        assert "2 tensors (encoder.net.conv1.weight, encoder.net.conv1.bias) frozen" in page


def test_reference_without_a_run_between_sites_is_refused(sites: Sites, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="only runs between sites can use: name a file"):
        sites.pooled("fedavg", tmp_path / "run", model="mlp2", weights=f"sha256:{'0' * 64}:12")


def test_same_as_planned_without_weights(sites: Sites) -> None:
    """Runs without initial weights have no rows about them."""
    folder = sites.run("fedavg", "plain", **FROZEN)
    same_as_planned(sites, folder, "fedavg", **FROZEN)


PACKAGE = """
from torch import nn

def build(shape, classes, width=6):
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], width), nn.ReLU())
    return encoder.requires_grad_(False), nn.Linear(width, classes)
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that the operators of all sites have installed, with a model of a researcher."""
    folder = tmp_path / "site-packages"
    info = folder / "clinic_models-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "clinic_models.py").write_text(PACKAGE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: clinic-models\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[comity.models]\nclinic = clinic_models:build\n")
    monkeypatch.syspath_prepend(str(folder))


def test_model_of_an_installed_package_with_own_weights(
    package: None, sites: Sites, tmp_path: Path
) -> None:
    values = {"encoder.1.weight": torch.rand(8, 64), "encoder.1.bias": torch.rand(8)}
    save_file(values, tmp_path / "clinic.safetensors")
    settings = {
        "model": "clinic(width=8)",
        "weights": str(tmp_path / "clinic.safetensors"),
        "cache": False,
    } | USUAL
    folder = run(sites, submitted(sites, tmp_path / "out", "fedavg", **settings))
    (start,) = ended(folder)["initial_weights"]
    assert start["frozen"] == ["encoder.1.weight", "encoder.1.bias"]
    assert not start["unfilled"]
    pooled = sites.pooled("fedavg", tmp_path / "pooled", **settings)
    assert (folder / "metrics.csv").read_text() == (pooled.folder / "metrics.csv").read_text()


def test_installed_model_with_an_unknown_option_is_refused(package: None) -> None:
    from comity.models import build, catalogue

    with pytest.raises(UsageError, match="depth"):
        build("clinic(depth=3)", (1, 8, 8), 10)
    with pytest.raises(UsageError, match="clinic"):
        build("clinik", (1, 8, 8), 10)
    assert "clinic" in {row["name"] for row in catalogue()}


def test_frozen_weights_count_for_the_largest_model(
    sites: Sites, tmp_path: Path, encoder: Path
) -> None:
    sites.change("north", {"weights = 1000000000": "weights = 100"})
    job = submitted(sites, tmp_path / "out", "fedavg", **FROZEN | {"weights": str(encoder)})
    assert "north trains models of 100 weights at most, not of 162" in failure(run(sites, job))


def test_plan_tells_what_is_sent(
    encoder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from comity.runs.config import experiment
    from comity.studies.plan import sent_weights

    model = f"torchvision(name=small,weights={encoder})"
    assert sent_weights(experiment({"model": model})) == sent_weights(
        experiment({"weights": str(encoder)})
    )
    assert 16_000 < sent_weights(experiment({"weights": str(encoder)})) < 25_000
    assert sent_weights(experiment({})) == 0
