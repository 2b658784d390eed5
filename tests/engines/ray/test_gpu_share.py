"""Workers that request GPUs, tested without a GPU: Ray does not check that declared GPUs exist."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# Comity declares as many GPUs to its own Ray cluster as torch finds; here torch claims to find one.
CLUSTER = """
import sys, time, warnings
import torch
torch.cuda.device_count = lambda: 1
import comity
from comity.engines.ray_cluster import Cluster
from comity.errors import ComityError

def free_gpus(gpus):
    cluster = Cluster(2, gpus)
    import ray
    for _ in range(100):
        free = ray.available_resources().get("GPU", 0.0)
        if free < 1 or not gpus:
            break
        time.sleep(0.1)
    cluster.close()
    return free

print("free", [round(free_gpus(gpus), 2) for gpus in (0.5, 0.25)])
warnings.simplefilter("ignore")
for gpus in (0.6, 1):
    try:
        Cluster(2, gpus)
    except ComityError as why:
        print(why)
try:
    comity.run("fedavg", data="digits", parties=2, rounds=1, model="linear", engine="ray", workers=1, gpus=0.5)
except ComityError as why:
    print(why)
"""


def test_each_worker_requests_its_share_of_a_gpu(tmp_path: Path) -> None:
    """In a separate process, because Ray is started several times, with a GPU that does not exist."""
    process = subprocess.run(
        [sys.executable, "-c", CLUSTER], capture_output=True, text=True, timeout=300, check=False,
        env={name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"},
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    *_, shares, too_much, whole, run = process.stdout.splitlines()
    assert shares == "free [0.0, 0.5]"
    assert (
        too_much
        == "The Ray cluster has 1 GPUs, which is room for 1 workers with 0.6 each, not for 2: give"
        " fewer --workers or less --gpus, or go without a GPU."
    )
    assert "room for 1 workers with 1 each" in whole
    assert (
        run == "A worker on the Ray cluster cannot take part: Ray has given it a GPU, or a share of"
        " one, but torch finds none there."
    )


def test_local_cluster_without_gpus_is_refused(tmp_path: Path) -> None:
    command = [
        "run", "fedavg", "--data", "digits", "--parties", "2", "--rounds", "1", "--model", "linear", "--engine", "ray",
        "--workers", "2", "--gpus", "0.5", "--out", str(tmp_path / "run"),
    ]  # fmt: skip
    process = subprocess.run(
        [sys.executable, "-m", "comity.cli", *command], capture_output=True, text=True, timeout=100, check=False,
        env={name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"} | {"CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    assert process.returncode
    assert (
        process.stderr.splitlines()[-1]
        == "comity: The Ray cluster has 0 GPUs, which is room for 0 workers with 0.5 each, not for"
        " 2: give fewer --workers or less --gpus, or go without a GPU."
    )


@pytest.mark.usefixtures("two_nodes")
def test_existing_cluster_without_gpus_is_refused(tmp_path: Path) -> None:
    import comity
    from comity.errors import UsageError

    with pytest.raises(
        UsageError,
        match="The Ray cluster has 0 GPUs, which is room for 0 workers with 1 each, not for 2",
    ):
        comity.run(
            "fedavg",
            data="digits",
            parties=2,
            rounds=1,
            model="linear",
            engine="ray",
            workers=2,
            gpus=1,
            out=tmp_path,
        )
