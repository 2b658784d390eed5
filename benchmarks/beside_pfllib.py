"""PFLlib as one of the libraries of `beside.py`: its server classes, called as its main.py calls them.

    python beside_pfllib.py FOLDER CHECKOUT

Its federation is read from files, which are written into a temporary folder in the form it expects. It evaluates at a round's
beginning what the rounds before have made: its n-th evaluation is after n rounds. It drops a party's last batch if it is not whole,
which no party of ours has.
"""

from __future__ import annotations

import copy
import functools
import importlib
import os
import sys
import tempfile
import types
from argparse import Namespace
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import numpy as np
from beside_work import CLASSES, Asked, Curve, answer, network, parties, seeded
from torch import nn

# Of its defaults only what says that nothing special happens; a method's own options come with what is asked.
PLAIN = {
    "device": "cpu",
    "dataset": "beside",
    "num_classes": CLASSES,
    "join_ratio": 1.0,
    "random_join_ratio": False,
    "few_shot": 0,
    "time_select": False,
    "goal": "beside",
    "time_threthold": 1e9,
    "save_folder_name": "items",
    "top_cnt": 1,
    "auto_break": False,
    "eval_gap": 1,
    "client_drop_rate": 0.0,
    "train_slow_rate": 0.0,
    "send_slow_rate": 0.0,
    "dlg_eval": False,
    "dlg_gap": 1,
    "batch_num_per_client": 1,
    "num_new_clients": 0,
    "fine_tuning_epoch_new": 0,
    "learning_rate_decay": False,
    "learning_rate_decay_gamma": 1.0,
}


def stand_in(name: str, **functions: Any) -> None:
    """For a package that is imported, and of whose figures nobody asks here."""
    module = types.ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    module.__dict__.update(functions)
    sys.modules[name] = module
    outer, _, inner = name.rpartition(".")
    if outer:
        setattr(sys.modules[outer], inner, module)


@functools.cache
def library() -> types.ModuleType:
    """Its module of clients, with the checkout on the path; it computes AUCs and draws pictures, which take longer than training.

    Files are read once, not in every round, and test samples answered together.
    """
    sys.path.insert(0, str(Path(sys.argv[2]).resolve() / "system"))
    for name in ("matplotlib", "matplotlib.pyplot", "sklearn", "h5py", "cvxpy"):
        stand_in(name)
    stand_in("sklearn.preprocessing", label_binarize=lambda y, classes: y[:, None])
    stand_in("sklearn.metrics", roc_auc_score=lambda *args, **named: 0.0)
    base = importlib.import_module("flcore.clients.clientbase")
    base.read_client_data = functools.cache(base.read_client_data)
    base.Client.load_some, tests = base.Client.load_train_data, base.Client.load_test_data
    base.Client.load_test_data = lambda client, batch_size=None: tests(client, client.test_samples)
    return base


def write(folder: Path, place: Path) -> None:
    """The federation in the library's format."""
    for kind in ("train", "test"):
        (place / "dataset" / "beside" / kind).mkdir(parents=True)
    for i, (train, test) in enumerate(parties(folder)):
        for kind, (x, y) in (("train", train), ("test", test)):
            np.savez(place / "dataset" / "beside" / kind / f"{i}.npz", data=np.array({"x": x.numpy(), "y": y.numpy()}))


def run(folder: Path, asked: Asked) -> Curve:
    """One method with the library's own loop over rounds; `method` is its server's file and class, as in serveravg.FedAvg."""
    base, how, options = library(), asked.how, dict(asked.options)
    split, watched = options.pop("split", False), options.pop("watched", "test_metrics")
    whole = how.batch is None
    # All samples in one batch: a party's own number of them is its batch size.
    base.Client.load_train_data = (
        (lambda client, batch=None: client.load_some(client.train_samples)) if whole else base.Client.load_some
    )
    model: nn.Module = network(folder, asked.seed)
    settings: dict[str, Any] = PLAIN | {"local_epochs": how.epochs, "local_learning_rate": how.lr, "batch_size": how.batch or 10}
    settings |= {"num_clients": len(parties(folder)), "global_rounds": how.rounds, "algorithm": asked.method}
    args = Namespace(**settings | options)
    if split:
        args.head = copy.deepcopy(model.fc)
        model.fc = nn.Identity()
        model = importlib.import_module("flcore.trainmodel.models").BaseHeadSplit(model, args.head)
    args.model = model
    curve: Curve = []
    file, name = asked.method.split(".")
    with tempfile.TemporaryDirectory(prefix="beside-pfllib-") as place:
        (Path(place) / "system").mkdir()
        os.chdir(Path(place) / "system")  # where it looks for data, and leaves its results
        try:
            write(folder, Path(place))
            base.read_client_data.cache_clear()
            server = getattr(importlib.import_module(f"flcore.servers.{file}"), name)(args, 0)
            seeded(asked.seed)  # each of its clients has seeded everything with 0
            measure = getattr(server, watched)

            def measured() -> Any:
                found = measure()
                curve.append([round(right) for right in found[2]])
                return found

            setattr(server, watched, measured)
            server.train_metrics = server.train_metrics_personalized = lambda: ([0], [1], [0], [0])
            server.save_results = server.save_global_model = lambda: None
            server.train()
        finally:
            os.chdir("/")
    return curve[: how.rounds + 1]  # a last evaluation may come after fine-tuning


if __name__ == "__main__":
    answer(run)
