"""Bundles, the encoding of trees for engines that send bytes: common tensors are packed once, and
unpacking restores the tree.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matrix import ragged
from torch import nn

import comity
from comity.base.call import CallId, Message
from comity.base.record import leaves
from comity.core import Model
from comity.engines import ray_cluster
from comity.errors import UsageError
from comity.studies.parallel import with_one_worker
from comity.wire.bundles import pack, pack_for, unpack


def test_common_tensors_are_packed_once() -> None:
    """A model for all workers, a row for each, and a table for two of three."""
    theta = {"w": torch.randn(30, 20), "b": torch.randn(7)}
    table = torch.arange(5)
    rows = [torch.randn(3) for _ in range(3)]
    trees: dict[int, Any] = {
        w: {
            "messages": {
                w: Message(Model(theta), None),
                9: Message(Model(theta), CallId("local", 0, 1, 0), True),
            },
            "row": rows[w],
        }
        for w in range(3)
    }
    trees[0]["table"] = trees[2]["table"] = table
    headers, bundles = pack_for(trees)
    assert sorted(len(bundle_ids) for _, bundle_ids in headers.values()) == [2, 3, 3]
    assert (
        sum(bundle.nbytes for bundle in bundles) < 1.2 * (4 * 607 + 40 + 36) + 64 * len(bundles) * 2
    )
    for w, (header, bundle_ids) in headers.items():
        content = unpack(header, *(bundles[g] for g in bundle_ids))
        assert content["messages"].keys() == trees[w]["messages"].keys()
        assert content["messages"][9][1:] == (("local", 0, 1, 0), True)
        tensors = (
            [leaf for leaf in leaves(tree) if isinstance(leaf, torch.Tensor)]
            for tree in (trees[w], content)
        )
        for original_tensor, unpacked_tensor in zip(*tensors, strict=True):
            assert torch.equal(original_tensor, unpacked_tensor)
            assert unpacked_tensor.data_ptr() % 64 == 0, (
                "as torch's own memory: BLAS may round by it"
            )
        assert content["messages"][w][0].theta["w"] is content["messages"][9][0].theta["w"]


def test_unpacked_tensors_are_copies() -> None:
    """A bundle has several readers; a change by one of them must not reach the others."""
    header, bundle = pack(
        {"x": torch.zeros(4), "none": torch.empty(0, 3), "yes": torch.tensor([True])}
    )
    bundle.flags.writeable = False
    first, second = (unpack(header, bundle) for _ in range(2))
    first["x"] += 1
    assert not second["x"].any()
    assert second["none"].shape == (0, 3)
    assert second["yes"].dtype == torch.bool


def test_padding_between_tensors_is_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bundle goes to other machines: uninitialised memory would send old contents of this
    process.
    """
    monkeypatch.setattr(np, "empty", lambda shape, dtype: np.full(shape, 0xAA, dtype))
    tensors = [torch.ones(3), torch.ones(5, dtype=torch.uint8), torch.ones(16), torch.tensor(True)]
    _, bundle = pack(tensors)
    expected = np.zeros(4 * 64, np.uint8)
    for k, tensor in enumerate(tensors):
        expected[64 * k : 64 * k + tensor.nbytes] = tensor.reshape(-1).view(torch.uint8).numpy()
    assert bundle.tobytes() == expected.tobytes()


def test_tree_without_tensors() -> None:
    assert unpack(*pack({"do": "save", "round": 3})) == {"do": "save", "round": 3}


def test_arrays_and_modules_are_refused_on_ray(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_cluster, "check_installed", lambda: None)
    monkeypatch.setattr("comity.runs.build.check_installed", lambda: None)
    with pytest.raises(UsageError, match="data given as arrays"):
        comity.run("fedavg", ragged(), out=tmp_path / "a", engine="ray")
    pair = nn.Sequential(nn.Flatten(), nn.Linear(64, 9)), nn.Linear(9, 10)
    with pytest.raises(UsageError, match="networks given as modules"):
        comity.run("fedavg", data="digits", model=pair, out=tmp_path / "b", engine="ray")
    assert not list(tmp_path.iterdir())


def test_missing_ray_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'comity\[ray\]'"):
        comity.run("fedavg", data="digits", out=tmp_path / "run", engine="ray")
    assert not list(tmp_path.iterdir())


def test_parallel_jobs_are_refused_on_ray() -> None:
    from comity.runs import config

    with pytest.raises(UsageError, match="workers instead of jobs"):
        with_one_worker(config.experiment({"engine": "ray"}), 2)
