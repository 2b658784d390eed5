"""A malicious server against the minimum group size of a site policy: whatever the options of a
method say, no value of fewer records leaves.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from in_process_sites import Sites
from malicious_server import MaliciousServer, Refused, weights
from patient_sites import PatientSites

from comity.base.record import Model
from comity.deploy.group_size import RecordGroup
from comity.deploy.policy import SitePolicy
from comity.errors import UsageError

SIZES = {"north": (150, 20), "east": (140, 20)}
USUAL: dict[str, Any] = {"model": "mlp2(width=8)", "rounds": 2, "test": "official", "batch": 16}


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Sites:
    """Sites with the policy as it comes, with class counts and covariances allowed."""
    changes = {'"gradients"]': '"gradients", "class counts", "covariances"]'}
    return Sites(tmp_path_factory.mktemp("sites"), SIZES, changes, classes=2)


def begin(sites: Sites, method: str, **settings: Any) -> None:
    name = "".join(c for c in f"{method}{settings}" if c.isalnum())[:60]
    MaliciousServer(sites, "north", name, method, **USUAL | settings).begin()


SMALL_GROUPS: list[tuple[str, dict[str, Any]]] = [
    ("fedavg", {"batch": 1, "steps": 1}),
    ("fedavg", {"batch": 2, "steps": 4}),
    ("scaffold", {"batch": 1, "steps": 9}),
    ("fedavg+dp(noise=0)", {"batch": 1, "steps": 1}),
    ("adcol", {}),
    ("adcol(sampling=0.1)", {}),
    ("fada", {}),
    ("fed-sps", {}),
    ("relay(n_avg=1,min_count=1)", {}),
    ("relay(n_avg=2,min_count=2)", {}),
    ("relay-p2p(n_avg=1,min_count=1)", {}),
]


@pytest.mark.parametrize(("method", "settings"), SMALL_GROUPS, ids=str)
def test_values_of_few_records_do_not_leave(
    sites: Sites, method: str, settings: dict[str, Any]
) -> None:
    with pytest.raises(Refused, match="records"):
        begin(sites, method, **settings)


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("fedavg", {}),
        ("fedavg", {"batch": 1}),
        ("fedavg", {"batch": 1, "steps": 10}),
        ("fedavg+dp(noise=1)", {"batch": 1, "steps": 1}),
        ("relay(n_avg=10)", {}),
        ("relay(n_avg=0)", {}),
        ("fedproto", {}),
        ("ccvr", {}),
        ("adcol(noise=gauss_l2)", {}),
    ],
    ids=str,
)
def test_values_of_many_records_or_behind_noise_leave(
    sites: Sites, method: str, settings: dict[str, Any]
) -> None:
    begin(sites, method, **settings)


def test_single_records_need_a_permission_by_name(tmp_path: Path) -> None:
    sites = Sites(tmp_path / "sites", SIZES, {}, classes=2)
    with pytest.raises(Refused, match="single_records"):
        begin(sites, "adcol")
    for name in sites.names:
        sites.change(name, {"single_records = []": 'single_records = ["representations"]'})
    begin(sites, "adcol")


def test_figures_of_few_validation_records_do_not_leave(tmp_path: Path) -> None:
    """A pilot run chooses kappa by the figures of all parties' validation records."""
    method = "fedavg+dbe(kappa=auto)"
    few = Sites(tmp_path / "few", SIZES, {}, classes=2)
    with pytest.raises(Refused, match=r"behind Score\.\w+ of .* there may be fewer \(records"):
        begin(few, method, validation=0.05)
    enough = Sites(tmp_path / "enough", SIZES, {}, classes=2)
    begin(enough, method, validation=0.1)


def test_a_field_without_a_description_does_not_leave() -> None:
    """Nobody knows how many records are behind it."""
    policy = SitePolicy("north", Path("data"))
    policy.check_groups([RecordGroup("Model.theta", "weights", 10)], "fedavg")
    with pytest.raises(UsageError, match=r"cannot tell how many records are behind Model\.extra"):
        policy.check_groups([RecordGroup("Model.extra", "", None)], "fedavg")


@pytest.fixture(scope="module")
def sites_with_small_classes(tmp_path_factory: pytest.TempPathFactory) -> Sites:
    """Sites with fewer than 10 training records of some classes; all kinds of content may leave."""
    changes = {'"gradients"]': '"gradients", "class counts", "covariances"]'}
    sizes = {"north": (105, 20), "east": (105, 20)}
    return Sites(tmp_path_factory.mktemp("sites"), sizes, changes)


@pytest.mark.parametrize("method", ["fedproto", "fd", "relay(n_avg=0)", "ccvr", "ccvr+mr"])
def test_statistics_of_a_small_class_do_not_leave(
    sites_with_small_classes: Sites, method: str
) -> None:
    with pytest.raises(Refused, match="lets values of 10 records or more leave") as refused:
        begin(sites_with_small_classes, method)
    assert not any(f" {count} " in str(refused.value) for count in range(1, 10))  # untold


@pytest.mark.parametrize("method", ["fedavg+dbe", "fedavg+mr", "fedavg+prbm"])
def test_means_over_all_classes_leave(sites_with_small_classes: Sites, method: str) -> None:
    begin(sites_with_small_classes, method)


@pytest.mark.parametrize(
    ("rule", "settings", "word"),
    [
        ({"epochs = 100": "epochs = 3"}, {"epochs": 4}, "epochs"),
        ({"steps = 100000": "steps = 30"}, {"steps": 31}, "steps"),
        ({"weights = 1000000000": "weights = 100"}, {}, "weights"),
        ({"sites = 2": "sites = 3"}, {}, "sites"),
    ],
    ids=["epochs", "steps", "weights", "sites"],
)
def test_bounds_of_the_policy(
    tmp_path: Path, rule: dict[str, str], settings: dict[str, Any], word: str
) -> None:
    sites = Sites(tmp_path / "sites", SIZES, rule, classes=2)
    with pytest.raises(Refused, match=rf"\({word}\)"):
        begin(sites, "fedavg", **settings)


def test_sites_without_certificates_do_not_count(tmp_path: Path) -> None:
    """A server that makes up a site has no certificate for it."""
    from dataclasses import replace

    from comity.deploy.messages import Begin

    sites = Sites(tmp_path / "sites", SIZES, {}, classes=2)
    server = MaliciousServer(sites, "north", "alone", "fedavg", **USUAL)
    described = server.introduce()
    parties = {"made-up": replace(described.said), "north": described.said}
    with pytest.raises(Refused, match="1 have shown a certificate"):
        server.send(Begin("alone", parties, {}))


ALLOW_MORE = {'"gradients"]': '"gradients", "class counts", "covariances"]'}
PATIENTS: dict[str, Any] = {"test": "own(0.25)"}


@pytest.fixture(scope="module")
def patients(tmp_path_factory: pytest.TempPathFactory) -> PatientSites:
    """Sites with 300 records of 60 patients."""
    folder = tmp_path_factory.mktemp("patients") / "sites"
    return PatientSites(folder, ALLOW_MORE, 300, lambda j: j // 5, classes=2)


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("fedavg", {"batch": 10, "steps": 4}),
        ("scaffold", {"batch": 1, "steps": 45}),
        ("relay(n_avg=10)", {}),
        ("relay(n_avg=25)", {}),
        ("relay-p2p(n_avg=10)", {}),
    ],
    ids=str,
)
def test_many_records_of_few_patients_do_not_leave(
    patients: PatientSites, method: str, settings: dict[str, Any]
) -> None:
    """At least 10 records are behind each value, of perhaps 9 patients or fewer."""
    with pytest.raises(Refused, match="10 patients or more"):
        begin(patients, method, **PATIENTS | settings)


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("fedavg", {}),
        ("fedavg", {"batch": 10, "steps": 5}),
        ("fedproto", {}),
        ("relay(n_avg=0)", {}),
    ],
    ids=str,
)
def test_values_of_enough_patients_leave(
    patients: PatientSites, method: str, settings: dict[str, Any]
) -> None:
    begin(patients, method, **PATIENTS | settings)


def test_a_site_of_few_patients_takes_no_part(tmp_path: Path) -> None:
    sites = PatientSites(tmp_path / "sites", ALLOW_MORE, 300, lambda j: j // 25, classes=2)
    with pytest.raises(Refused, match="fewer than 10 patients"):
        begin(sites, "fedavg", **PATIENTS)


def test_statistics_of_a_class_of_few_patients_do_not_leave(tmp_path: Path) -> None:
    """Of 60 patients 8 are of class 1, with 40 records."""
    sites = PatientSites(
        tmp_path / "sites", ALLOW_MORE, 300, lambda j: j // 5, lambda j: int(j < 40), classes=2
    )
    begin(sites, "fedavg", **PATIENTS)
    with pytest.raises(Refused, match="10 patients or more"):
        begin(sites, "fedproto", **PATIENTS)


def test_figures_of_few_test_patients_do_not_leave(tmp_path: Path) -> None:
    """The test records, 30 of 300, are of 6 patients, and as many are for validation."""
    sites = PatientSites(tmp_path / "sites", {}, 300, lambda j: j // 5)
    settings = USUAL | {"model": "linear", "test": "own(0.1)"}
    server = MaliciousServer(sites, "north", "figures", "fedavg", **settings)
    server.begin()
    assert server.described.said.judged == []
    assert server.described.said.test >= 20
    evaluation = server.evaluate(Model(weights(0.0)))
    assert evaluation.test.count == evaluation.validation.count == 0
