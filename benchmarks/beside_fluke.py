"""fluke as one of the libraries of `beside.py`: its clients and servers, run by its own algorithm.

    python beside_fluke.py FOLDER

`method` is a file and a class of its algorithms, as in fedopt.FedOpt. Options are those of its
`client`, `server` and `optimizer`, each a dict. Options that are not fluke's: `shared` is the part
of the network that its server has, if not all; `watched` names a function below which tells the
model that counts after a round, the server's unless told; and `mended` one which mends a fault that
would hide everything else.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from beside_work import CLASSES, Asked, Curve, Pair, answer, network, parties, right
from fluke import FlukeENV
from fluke.config import OptimizerConfigurator
from fluke.data import FastDataLoader
from fluke.nets import EncoderHeadNet
from fluke.utils import FederationObserver
from torch import Tensor, nn
from torch.func import functional_call


def of_server(client: Any, server: Any) -> nn.Module:
    model: nn.Module = server.model
    return model


def received(client: Any, server: Any) -> nn.Module:
    """A party's model with what the server has newly made, as the next round begins with."""
    server.broadcast_model([client])
    client.receive_model()
    model: nn.Module = client.model
    return model


def personal(client: Any, server: Any) -> nn.Module:
    model: nn.Module = client.personalized_model
    return model


def trained(client: Any, server: Any) -> nn.Module:
    """What the party itself has trained last."""
    model: nn.Module = client.model
    return model


def two_heads(client: Any, server: Any) -> nn.Module:
    """FedRoD: both heads' answers, by fluke's class for that."""
    model: nn.Module = theirs(client).RODModel(received(client, server), client.inner_model)
    return model


def nearest(client: Any, server: Any) -> nn.Module:
    """FedProto: the class whose global prototype is nearest, by fluke's class for that."""
    known = dict(enumerate(server.prototypes))
    model: nn.Module = theirs(client).FedProtoModel(client.model, known, torch.device("cpu"))
    return model


def mixed(client: Any, server: Any) -> nn.Module:
    """APFL: the mixture of what the party has trained last of both models, by fluke's function for
    that.
    """
    part = client.hyper_params.lam
    model: nn.Module = theirs(client).merge_models(client.model, client.personalized_model, part)
    return model


def taken_over(client: Any, server: Any) -> nn.Module:
    """FedALA: the newest global model, of whose head as much is taken over as the party has learnt
    last.
    """
    taken: Any = copy.deepcopy(server.model)
    own = client.model.head.parameters()
    for new, old, weight in zip(
        taken.head.parameters(), own, client.weights or [1.0, 1.0], strict=True
    ):
        new.data = old.data + (new.data - old.data) * weight
    model: nn.Module = taken
    return model


def adapted(client: Any, server: Any) -> nn.Module:
    """Per-FedAvg: the server's model after one step on a batch of the party's."""
    model: nn.Module = copy.deepcopy(server.model)
    x, y = next(iter(client.train_set))
    gradients = torch.autograd.grad(
        nn.functional.cross_entropy(model(x), y), list(model.parameters())
    )
    for weight, gradient in zip(model.parameters(), gradients, strict=True):
        weight.data -= client.optimizer.param_groups[0]["lr"] * gradient
    return model


Watch = Callable[[Any, Any], nn.Module]
WATCHED: dict[str, Watch] = {
    each.__name__: each
    for each in (
        adapted,
        mixed,
        nearest,
        of_server,
        personal,
        received,
        taken_over,
        trained,
        two_heads,
    )
}


def theirs(client: Any) -> Any:
    """The module that a client's class is of."""
    return sys.modules[type(client).__module__]


def from_zero(clients: list[Any], server: Any) -> None:
    """FedAvgM: momentum begins with 0, to which the first round's change is added; in fluke it is
    lost.
    """
    server.momentum_vector = {
        name: torch.zeros_like(value) for name, value in server.model.state_dict().items()
    }


def first_moments(clients: list[Any], server: Any) -> None:
    """FedAdam, FedYogi, FedAdagrad: Δ is the whole change, and v begins with τ², not with 0.

    In fluke Δ is multiplied by the server's learning rate, and so is the step that is made of it.
    """
    server.v_t = {
        name: torch.full_like(v, server.hyper_params.tau**2) for name, v in server.v_t.items()
    }
    base: Any = sys.modules["fluke.server"]
    aggregate, average = server.aggregate, base.aggregate_models

    def aggregated(eligible: Any, models: Any) -> None:
        base.aggregate_models = lambda model, models, weights, eta, **named: average(
            model, models, weights, 1.0, **named
        )
        aggregate(eligible, models)
        base.aggregate_models = average

    server.aggregate = aggregated


def ten_passes(clients: list[Any], server: Any) -> None:
    """FedALA: whether weights have converged is seen from ten passes over a party's samples, not
    from ten batches.
    """
    for client in clients:
        client.hyper_params.update(loss_window_size=10 * len(client.train_set))


def prototypes_after(clients: list[Any], server: Any) -> None:
    """FedProto: prototypes are those of the trained model."""

    def after(client: Any) -> None:
        fit = client.fit

        def fitted(*args: Any) -> Any:
            loss, (x, y) = fit(*args), client.train_set.tensors
            with torch.no_grad():
                made = client.model.encoder(x)
            client._update_protos({int(c): list(made[y == c]) for c in y.unique()})
            return loss

        client.fit = fitted

    for client in clients:
        after(client)


def from_before(clients: list[Any], server: Any) -> None:
    """Per-FedAvg: the second of a pair of steps is made from where the first began, not from where
    it ended.
    """

    def mend(client: Any) -> None:
        fit = client.fit

        def fitted(*args: Any) -> Any:
            client.optimizer, client.scheduler = client._optimizer_cfg(client.model)
            step, weights = client.optimizer.step, list(client.model.parameters())
            before: list[Tensor] = []

            def stepped(closure: Any, beta: float = 0.0) -> None:
                if not beta:
                    before[:] = [weight.data.clone() for weight in weights]
                else:
                    for weight, value in zip(weights, before, strict=True):
                        weight.data = value
                step(closure, beta=beta)

            client.optimizer.step = stepped
            return fit(*args)

        client.fit = fitted

    for client in clients:
        mend(client)


def held_to_copies(clients: list[Any], server: Any) -> None:
    """pFedMe: θ is held to the party's copy of the global model, and the copy is what begins at it
    and is sent.

    In fluke θ is held to itself, its copy goes on from the round before, and θ is sent. Nothing
    else decays the weights.
    """
    messages = theirs(clients[0]).Client.send_model

    def mend(client: Any) -> None:
        receive, fit = client.receive_model, client.fit

        def had() -> None:
            receive()
            client.internal_model.load_state_dict(client.model.state_dict())

        def fitted(*args: Any) -> Any:
            client.optimizer, client.scheduler = client._optimizer_cfg(client.model)
            step, kept = client.optimizer.step, client.internal_model
            client.optimizer.step = lambda _: step(kept.parameters())
            kept.load_state_dict = lambda _: None  # what it had become is written over at the end
            loss = fit(*args)
            del kept.load_state_dict
            return loss

        def sent() -> None:
            own, client.model = client.model, client.internal_model
            messages(client)
            client.model = own

        client.receive_model, client.fit, client.send_model = had, fitted, sent

    for client in clients:
        mend(client)


class Mixture(nn.Module):
    """APFL: both models mixed, so that the party's own has a gradient; the other is as it was
    before its last step.
    """

    def __init__(self, before: dict[str, Tensor], own: nn.Module, part: float) -> None:
        super().__init__()
        self.own, self.before, self.part = own, before, part

    def forward(self, x: Tensor) -> Tensor:
        mean = {
            name: self.part * v + (1 - self.part) * self.before[name]
            for name, v in self.own.named_parameters()
        }
        answers: Tensor = functional_call(self.own, mean, x)
        return answers


def own_gradient(clients: list[Any], server: Any) -> None:
    """APFL: the party's own model is trained through the mixture, and stays what it is.

    In fluke the mixture is a copy, whose gradient nobody uses, and takes the own model's place
    after every round.
    """
    module = theirs(clients[0])
    merged = module.merge_models

    def mend(client: Any) -> None:
        fit, before = client.fit, {}

        def remember(model: nn.Module, _: Any) -> None:
            before.update(
                {name: weight.detach().clone() for name, weight in model.named_parameters()}
            )

        def fitted(*args: Any) -> Any:
            own, hook = client.personalized_model, client.model.register_forward_pre_hook(remember)
            module.merge_models = lambda _, own, part: Mixture(before, own, part)
            loss = fit(*args)
            module.merge_models, client.personalized_model = merged, own
            hook.remove()
            return loss

        client.fit = fitted

    for client in clients:
        mend(client)


MENDS = (
    first_moments,
    from_before,
    from_zero,
    held_to_copies,
    own_gradient,
    prototypes_after,
    ten_passes,
)
MENDED = {each.__name__: each for each in MENDS}


class Measured(FederationObserver):  # type: ignore[misc]
    """Everybody's right answers after every round."""

    def __init__(
        self, watch: Watch, clients: list[Any], server: Any, tests: list[Pair], curve: Curve
    ) -> None:
        self.watch, self.clients, self.server, self.tests, self.curve = (
            watch,
            clients,
            server,
            tests,
            curve,
        )

    def end_round(self, round: int) -> None:
        both = zip(self.clients, self.tests, strict=True)
        self.curve.append([right(self.watch(client, self.server), own) for client, own in both])


def loader(pair: Pair, batch: int) -> FastDataLoader:
    return FastDataLoader(
        *pair, num_labels=CLASSES, batch_size=batch, shuffle=True, skip_singleton=False
    )


def run(folder: Path, asked: Asked) -> Curve:
    """One of its algorithms."""
    file, name = asked.method.split(".")
    kind, how, data = (
        getattr(importlib.import_module(f"fluke.algorithms.{file}"), name),
        asked.how,
        parties(folder),
    )
    options = {"client": {}, "server": {}, "optimizer": {}} | asked.options
    FlukeENV().set_seed(asked.seed)
    FlukeENV().set_device("cpu")
    FlukeENV().set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
    whole = network(folder, asked)
    model = EncoderHeadNet(whole.body, whole.fc)
    steps = {"name": kind.get_optimizer_class(kind), "lr": how.lr} | options["optimizer"]
    client, server = kind.get_client_class(kind), kind.get_server_class(kind)
    has_model = "model" in inspect.signature(client).parameters
    clients = [
        client(
            index=i,
            train_set=loader(train, how.batch or len(train[1])),
            test_set=None,
            optimizer_cfg=OptimizerConfigurator(steps),
            loss_fn=nn.CrossEntropyLoss(),
            **({"model": copy.deepcopy(model)} if has_model else {}),
            **{"local_epochs": how.epochs} | options["client"],
        )
        for i, (train, _) in enumerate(data)
    ]
    tests = [tests for _, tests in data]
    curve: Curve = [[right(model, own) for own in tests]]
    shared = copy.deepcopy(getattr(model, options["shared"]) if "shared" in options else model)
    made = server(
        model=shared, test_set=None, clients=clients, **{"weighted": True} | options["server"]
    )
    if "mended" in options:
        MENDED[options["mended"]](clients, made)
    federation = kind(len(clients), None, {}, clients, made)
    watch = WATCHED[options.get("watched", "of_server")]
    federation.set_callbacks([Measured(watch, clients, made, tests, curve)])
    federation.run(how.rounds, 1.0)
    return curve


if __name__ == "__main__":
    answer(run)
