"""What `beside.py` compares: methods of ours beside what other libraries have of them, with options that make the two the same."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from beside_work import How


@dataclass(frozen=True)
class Match:
    """A method of ours, with its options, and a library's with those that mean the same."""

    ours: str
    library: str
    method: str
    options: dict[str, Any] = field(default_factory=dict)
    why: str = ""
    """The reason, in a sentence, if curves are apart."""

    @property
    def name(self) -> str:
        return self.ours.partition("(")[0]

    def spec(self, how: How) -> str:
        """Our method as it is named in runs of this kind."""
        return self.ours.format(epochs=how.epochs, lr=how.lr)

    def asked(self, how: How) -> dict[str, Any]:
        """The library's options in runs of this kind."""
        known = {"{epochs}": how.epochs, "{lr}": how.lr}
        return {name: known.get(value, value) if isinstance(value, str) else value for name, value in self.options.items()}


SPLIT: dict[str, Any] = {"split": True}

MATCHES = [
    Match("solo", "pfllib", "serverlocal.Local"),
    Match("fedavg", "pfllib", "serveravg.FedAvg", SPLIT),
    Match("fedprox(mu=0.1)", "pfllib", "serverprox.FedProx", {"mu": 0.1}),
    Match("scaffold", "pfllib", "serverscaffold.SCAFFOLD", {"server_learning_rate": 1.0}),
    Match("ditto(lam=1)", "pfllib", "serverditto.Ditto", {"mu": 1.0, "plocal_epochs": "{epochs}", "watched": "test_metrics_personalized"}),
    Match("fedper", "pfllib", "serverper.FedPer", SPLIT),
    Match("fedrep(head_epochs=2)", "pfllib", "serverrep.FedRep", SPLIT | {"plocal_epochs": 2}),
    Match("apfl", "pfllib", "serverapfl.APFL", {"alpha": 0.5}),
    Match("fedbabu(finetune_epochs=0)", "pfllib", "serverbabu.FedBABU", SPLIT | {"fine_tuning_epochs": 0}),
    Match("fedrod", "pfllib", "serverrod.FedROD", SPLIT),
    Match("moon(mu=1,tau=0.5)", "pfllib", "servermoon.MOON", SPLIT | {"mu": 1.0, "tau": 0.5}),
    Match("lg-fedavg", "pfllib", "serverlg.LG_FedAvg", SPLIT),
    Match("fd(gamma=1,distance=ce)", "pfllib", "serverfd.FD", {"lamda": 1.0}),
    Match(
        "fedgen(gen_steps=50,noise=64,hidden=64)",
        "pfllib",
        "servergen.FedGen",
        SPLIT
        | {"noise_dim": 64, "hidden_dim": 64, "generator_learning_rate": 0.005, "server_epochs": 50}
        | {"localize_feature_extractor": False},
    ),
    Match("fedavg", "flower", "FedAvg"),
    Match("q-ffl(q=1)", "flower", "QFedAvg", {"q": 1.0, "client_learning_rate": "{lr}"}),
    Match("fedavg+serveropt(opt=momentum)", "flower", "FedAvgM", {"server_momentum": 0.9}),
    Match("fedavg+serveropt(opt=adam)", "flower", "FedAdam", {"eta": 0.01, "beta_1": 0.9, "beta_2": 0.99, "tau": 0.001}),
    Match("fedavg+median", "flower", "FedMedian"),
    Match("fedavg+trimmed", "flower", "FedTrimmedAvg", {"beta": 0.2}),
    Match("fedavg+krum", "flower", "Krum", {"num_malicious_nodes": 2}),
    Match("fedavg+dbe(kappa=50,mu=0.1,init_mean=ema,init_epochs={epochs})", "pfllib", "serverdbe.FedDBE", SPLIT | {"kl_weight": 50.0, "momentum": 0.1}),
]
