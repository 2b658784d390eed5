"""Workers that take GPUs: what can be shown without one. Ray counts GPUs that it is only told of as
it counts real ones.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# A Ray of our own is told of as many GPUs as torch finds: here, one more than there are.
CLUSTER = """
import sys, time, warnings
import torch
torch.cuda.device_count = lambda: 1
import comity
from comity.engines.ray_cluster import Cluster
from comity.errors import ComityError

def left(gpus):
    cluster = Cluster(2, gpus)
    import ray
    for _ in range(100):
        free = ray.available_resources().get("GPU", 0.0)
        if free < 1 or not gpus:
            break
        time.sleep(0.1)
    cluster.close()
    return free

print("left", [round(left(gpus), 2) for gpus in (0.5, 0.25)])
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


def test_each_worker_asks_ray_for_its_share(tmp_path: Path) -> None:
    """In a process of its own: Ray is started several times, with a GPU that is none."""
    done = subprocess.run(
        [sys.executable, "-c", CLUSTER], capture_output=True, text=True, timeout=300, check=False,
        env={name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    *_, shares, too_much, whole, run = done.stdout.splitlines()
    assert shares == "left [0.0, 0.5]"
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


def test_a_cluster_without_gpus_says_so_at_once(tmp_path: Path) -> None:
    command = [
        "run", "fedavg", "--data", "digits", "--parties", "2", "--rounds", "1", "--model", "linear", "--engine", "ray",
        "--workers", "2", "--gpus", "0.5", "--out", str(tmp_path / "run"),
    ]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "comity.cli", *command], capture_output=True, text=True, timeout=100, check=False,
        env={name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"} | {"CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    assert done.returncode
    assert (
        done.stderr.splitlines()[-1]
        == "comity: The Ray cluster has 0 GPUs, which is room for 0 workers with 0.5 each, not for"
        " 2: give fewer --workers or less --gpus, or go without a GPU."
    )


@pytest.mark.usefixtures("two_nodes")
def test_a_cluster_of_others_without_gpus_says_so_too(tmp_path: Path) -> None:
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
