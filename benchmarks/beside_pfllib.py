"""PFLlib and HtFLlib as libraries of `beside.py`: their server classes, called as their main.py
calls them.

    python beside_pfllib.py FOLDER CHECKOUT

Their federation is read from files, which are written into a temporary folder in the form they
expect. They evaluate at a round's beginning what the rounds before have made: the n-th evaluation
is after n rounds. They drop a party's last batch if it is not whole, which no party of ours has.

Options that are not the library's: `split` cuts the network into body and head, `watched` names
what measures the models that count, `alike` averages parties with equal weights, `held_out` has the
samples last that Comity holds out, `from_files` is HtFLlib's way to models, and `mended` names a
function below which mends a fault that would hide everything else.
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
import torch
from beside_work import (
    CLASSES,
    Asked,
    Curve,
    Network,
    Pair,
    answer,
    arrays,
    network,
    parties,
    right,
    seeded,
)
from torch import nn

# Of its defaults only what says that nothing special happens; a method's own options come with what
# is asked.
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
def library() -> Any:
    """Its module of clients, with the checkout on the path; it computes AUCs and draws pictures,
    which take longer than training.

    Files are read once, not in every round, and test samples answered together.
    """
    sys.path.insert(0, str(Path(sys.argv[2]).resolve() / "system"))
    for name in ("matplotlib", "matplotlib.pyplot", "sklearn", "h5py", "cvxpy", "torchvision"):
        stand_in(name)
    stand_in("sklearn.preprocessing", label_binarize=lambda y, classes: y[:, None])
    stand_in("sklearn.metrics", roc_auc_score=lambda *args, **named: 0.0)
    base: Any = importlib.import_module("flcore.clients.clientbase")
    base.read_client_data = functools.cache(base.read_client_data)
    base.Client.load_some, tests = base.Client.load_train_data, base.Client.load_test_data
    base.Client.samples = property(
        lambda client: len(
            base.read_client_data(client.dataset, client.id, is_train=True, few_shot=0)
        )
    )
    torch.load = functools.partial(
        torch.load, weights_only=False
    )  # HtFLlib keeps whole models in files
    base.Client.load_test_data = lambda client, batch_size=None: tests(client, client.test_samples)
    return base


def write(folder: Path, place: Path, held_out: int) -> None:
    """The federation in the library's format; of every `held_out` training samples one goes to the
    end.
    """
    for kind in ("train", "test"):
        (place / "dataset" / "beside" / kind).mkdir(parents=True)
    for i, (train, test) in enumerate(parties(folder)):
        if held_out:
            last = np.arange(len(train[1])) % held_out == held_out - 1
            order = np.concatenate([np.flatnonzero(~last), np.flatnonzero(last)])
            train = train[0][order], train[1][order]  # noqa: PLW2901
        for kind, (x, y) in (("train", train), ("test", test)):
            np.savez(
                place / "dataset" / "beside" / kind / f"{i}.npz",
                data=np.array({"x": x.numpy(), "y": y.numpy()}),
            )


def samples(client: Any, is_train: bool) -> Pair:
    """What a party trains or tests on."""
    x, y = zip(
        *library().read_client_data(client.dataset, client.id, is_train=is_train, few_shot=0),
        strict=True,
    )
    return torch.stack(x), torch.stack(y)


First = dict[str, torch.Tensor]
"""What Comity's server begins with, where it is more than the network's weights."""


def own_thetas(server: Any, first: First) -> None:
    """pFedMe: its list of personal parameters is that of the model in training, so that what is
    measured is the global model.

    Here they are kept apart; and what measuring puts into the model is taken out again. Nothing
    else decays the weights.
    """

    def apart(client: Any) -> None:
        step = client.optimizer.step
        client.optimizer.step = lambda *args: [theta.detach().clone() for theta in step(*args)]
        client.optimizer.param_groups[0]["mu"] = 0.0

    for client in server.clients:
        apart(client)
    measure = server.test_metrics_personalized

    def measured() -> Any:
        found = measure()
        for client in server.clients:
            client.update_parameters(client.model, client.local_params)
        return found

    server.test_metrics_personalized = measured


def prototypes_after(server: Any, first: First) -> None:
    """FedProto, FedTGP: prototypes are those of the trained model, by a function that both
    libraries have.

    PFLlib takes means in passing, while weights still move; HtFLlib calls it before the trained
    model is where it looks.
    """

    def after(client: Any) -> None:
        train = client.train
        client.train = lambda: (train(), client.collect_protos())

    for client in server.clients:
        after(client)


class Changed:
    """A module in which some functions are others."""

    def __init__(self, module: types.ModuleType, **functions: Any) -> None:
        self.__dict__ |= {"module": module} | functions

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)


def filled(layer: nn.Module, first: First, name: str) -> None:
    """Put the values that Comity calls `name`.weight and `name`.bias into a layer."""
    layer.load_state_dict({kind: first[f"{name}.{kind}"] for kind in ("weight", "bias")})


def sure_roots(server: Any, first: First) -> None:
    """FedTGP: distances are roots of differences that rounding makes negative, which is no number.
    And `prototypes_after`.
    """
    prototypes_after(server, first)
    here = sys.modules[type(server).__module__].__dict__
    here["torch"] = Changed(torch, sqrt=lambda squares: torch.sqrt(squares.clamp(min=1e-12)))
    made = here["load_item"](server.role, "TGP", server.save_folder_name)
    made.embedings.load_state_dict({"weight": first["embedding"]})
    filled(made.middle[0][0], first, "in")
    filled(made.fc, first, "out")
    here["save_item"](made, server.role, "TGP", server.save_folder_name)


def sure_policy(server: Any, first: First) -> None:
    """FedCP: a policy without noise, in training and in tests, and the head's weights as its
    condition from round 1 on.
    """
    plain = Changed(nn.functional, gumbel_softmax=lambda x, dim, **named: x.softmax(dim))
    sys.modules[type(server).__module__].__dict__["F"] = plain
    swapped = {
        name: torch.cat(value.chunk(2)[::-1])
        for name, value in first.items()
        if name.startswith("fedcp.policy")
    }
    for client in server.clients:
        filled(client.model.gate.cs.fc[0], swapped, "fedcp.policy")
        filled(client.model.gate.cs.fc[1], swapped, "fedcp.policy.norm")
        client.set_head_g(client.model.head_g)


def looked_up(server: Any, first: First) -> None:
    """GPFL: conditions are looked up in the embeddings that are sent, from round 1 on, not in those
    that were trained before.
    """

    def mend(client: Any) -> None:
        client.GCE.embedding.load_state_dict({"weight": first["gpfl.embedding"]})
        for which in ("gamma", "beta"):
            layers = getattr(client.CoV, f"Conditional_{which}")
            filled(layers[0], first, f"gpfl.valve.{which}")
            filled(layers[2], first, f"gpfl.valve.{which}.norm")
        once = client.set_GCE
        client.set_GCE = lambda sent: (
            once(sent),
            once(sent),
        )  # the first time it looks at what it had
        once(client.GCE)

    for client in server.clients:
        mend(client)


def mixed_before(server: Any, first: First) -> None:
    """FedALA: what is measured is the newest global model mixed in by the weights of the last
    training.

    The library learns these weights once more before it measures. They are learnt from batches of a
    party's own size.
    """

    def mend(client: Any, tests: Pair) -> None:
        client.ALA.batch_size, learn = client.batch_size, client.local_initialization

        def learnt(sent: nn.Module) -> None:
            mixed, weights = copy.deepcopy(sent), client.ALA.weights or []
            highest = (list(model.parameters())[-len(weights) :] for model in (mixed, client.model))
            for w, new, own in zip(weights, *highest, strict=bool(weights)):
                new.data = own.data + (new.data - own.data) * w
            client.right = right(mixed, tests)
            learn(sent)

        client.local_initialization = learnt

    for client in server.clients:
        mend(client, samples(client, is_train=False))
    server.test_metrics = lambda: ([], [1], [client.right for client in server.clients], [0])


def cores_sent(server: Any, first: First) -> None:
    """APPLE: what is sent is the core model, not the mixture; nobody sees in a round what others
    train in it; p begins at p_0.

    What is measured is the mixture after the last step, not before it.
    """

    def mend(client: Any) -> None:
        client.ps, train, had = list(client.p0), client.train, client.set_models
        client.set_models = lambda cores: had([copy.deepcopy(core) for core in cores])

        def trained(t: int) -> None:
            client.model_c = client.model_cs[client.id]
            train(t)
            client.model_c = client.model_cs[client.id]
            client.aggregate_parameters()

        client.train = trained

    for client in server.clients:
        mend(client)


def constant_answers(server: Any, first: First) -> None:
    """FML: KL is a batch's mean, the other model's answers are constants, and parties count by
    their samples.
    """
    total = sum(client.train_samples for client in server.clients)
    shares = {id(client.global_model): client.train_samples / total for client in server.clients}
    add = server.add_parameters
    server.add_parameters = lambda _, model: add(shares[id(model)], model)
    for client in server.clients:
        client.KL = lambda own, other: nn.functional.kl_div(
            own, other.detach(), reduction="batchmean"
        )


def soft_targets(server: Any, first: First) -> None:
    """FD: parties are taught by the softmax of mean logits. The library takes logits for
    probabilities, and runs away.
    """

    def mend(client: Any) -> None:
        had = client.set_logits
        client.set_logits = lambda means: had(
            {label: mean.softmax(0) for label, mean in means.items()}
        )

    for client in server.clients:
        mend(client)


def trained_answers(server: Any, first: First) -> None:
    """FD: `soft_targets`; and mean logits are of the trained model, and count by samples."""
    soft_targets(server, first)

    def after(client: Any) -> None:
        train, (x, y) = client.train, samples(client, is_train=True)

        def trained() -> None:
            train()
            client.logits = {int(c): client.model(x[y == c]).detach().mean(0) for c in y.unique()}

        client.train = trained

    counts = torch.stack(
        [samples(client, is_train=True)[1].bincount(minlength=CLASSES) for client in server.clients]
    )

    def pooled(means: list[dict[int, torch.Tensor]]) -> dict[int, torch.Tensor]:
        heard = [(counts[i], mean) for i, mean in zip(server.uploaded_ids, means, strict=True)]
        return {
            c: sum(n[c] * mean[c] for n, mean in heard if c in mean) / counts[:, c].sum()
            for c in range(CLASSES)
        }

    for client in server.clients:
        after(client)
    sys.modules[type(server).__module__].__dict__["proto_aggregation"] = pooled


def soft_targets_filed(server: Any, first: First) -> None:
    """`soft_targets`, where mean logits are in a file."""
    here = sys.modules[type(server).__module__].__dict__
    receive = server.receive_logits

    def heard() -> None:
        receive()
        means = here["load_item"](server.role, "global_logits", server.save_folder_name)
        soft = {label: mean.softmax(0) for label, mean in means.items()}
        here["save_item"](soft, server.role, "global_logits", server.save_folder_name)

    server.receive_logits = heard


def prototypes_filed(server: Any, first: First) -> None:
    """FedProto: `prototypes_after`, where models and prototypes are in files; the function is that
    of HtFLlib's FedTGP.
    """
    of_trained = importlib.import_module("flcore.clients.clienttgp").clientTGP.collect_protos
    for client in server.clients:
        client.collect_protos = functools.partial(of_trained, client)
    prototypes_after(server, first)


def shuffled(server: Any, first: First) -> None:
    """Parties shuffle their samples before every pass; HtFLlib leaves them as they are."""

    def load(client: Any, batch_size: int | None = None) -> Any:
        data = library().read_client_data(client.dataset, client.id, is_train=True, few_shot=0)
        return torch.utils.data.DataLoader(
            data, batch_size or client.batch_size, shuffle=True, drop_last=True
        )

    for client in server.clients:
        client.load_train_data = functools.partial(load, client)


MENDS = (
    constant_answers,
    cores_sent,
    looked_up,
    mixed_before,
    own_thetas,
    prototypes_after,
    prototypes_filed,
    shuffled,
    soft_targets,
    soft_targets_filed,
    sure_policy,
    sure_roots,
    trained_answers,
)
MENDED = {each.__name__: each for each in MENDS}


class Split(nn.Module):
    """The network cut into body and head, as HtFLlib reads it from files."""

    def __init__(self, whole: Network) -> None:
        super().__init__()
        self.base, self.head = whole.body, whole.fc

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answers: torch.Tensor = self.head(self.base(x))
        return answers


def run(folder: Path, asked: Asked) -> Curve:
    """One method with the library's own loop over rounds; `method` is its server's file and class,
    as in serveravg.FedAvg.
    """
    base, how, options = library(), asked.how, dict(asked.options)
    ours = {
        name: options.pop(name, None)
        for name in ("split", "watched", "alike", "held_out", "mended", "from_files", "first")
    }
    # All samples in one batch: a party's own number of them is its batch size.
    everything = lambda client, batch_size=None: client.load_some(client.samples)  # noqa: E731
    base.Client.load_train_data = base.Client.load_some if how.batch else everything
    model = network(folder, asked)
    settings: dict[str, Any] = PLAIN | {
        "local_epochs": how.epochs,
        "local_learning_rate": how.lr,
        "batch_size": how.batch or 10,
    }
    settings |= {
        "num_clients": len(parties(folder)),
        "global_rounds": how.rounds,
        "algorithm": asked.method,
    }
    args = Namespace(**settings | options)
    args.model = model
    if ours["split"]:
        args.head = copy.deepcopy(model.fc)
        model.fc = nn.Identity()
        args.model = importlib.import_module("flcore.trainmodel.models").BaseHeadSplit(
            model, args.head
        )
    curve: Curve = []
    file, name = asked.method.split(".")
    with tempfile.TemporaryDirectory(prefix="beside-pfllib-") as place:
        (Path(place) / "system").mkdir()
        os.chdir(Path(place) / "system")  # where it looks for data, and leaves its results
        try:
            write(folder, Path(place), ours["held_out"] or 0)
            if ours["from_files"]:
                args.models_folder_name = "first"
                for i in range(args.num_clients):
                    base.save_item(Split(model), f"Client_{i}", "model", "first")
            base.read_client_data.cache_clear()
            module: Any = importlib.import_module(f"flcore.servers.{file}")
            if ours["from_files"]:
                module.BaseHeadSplit = lambda *args, **named: Split(
                    copy.deepcopy(model)
                )  # a server's own model
            server = getattr(module, name)(args, 0)
            seeded(asked.seed)  # each of its clients has seeded everything with 0
            server.batch_size = how.batch or 1000
            for client in server.clients:
                client.batch_size = how.batch or round(client.train_samples)
                client.train_samples = 1 if ours["alike"] else client.train_samples
            if ours["mended"]:
                MENDED[ours["mended"]](
                    server, arrays(folder / ours["first"]) if ours["first"] else {}
                )
            watched = ours["watched"] or "test_metrics"
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
