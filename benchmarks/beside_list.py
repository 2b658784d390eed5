"""What `beside.py` compares: methods of ours, and what other libraries have of them, with options that mean the same."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from beside_work import How


@dataclass(frozen=True, eq=False)
class Match:
    """A method of ours, with its options, and a library's with those that mean the same."""

    ours: str
    library: str
    method: str
    options: dict[str, Any] = field(default_factory=dict)
    """The library's; {epochs}, {lr} and {lr/parties} are those of the run, as in `ours`."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings of our run, with batches, beside those of all."""
    chance: bool = False
    """Whether something else is drawn at random, so that whole batches prove nothing."""
    first: str = ""
    """Which of our server's fields the library is to begin with, beside the network's weights."""
    why: str = ""
    """What differs, in a sentence."""

    @property
    def name(self) -> str:
        return self.ours.partition("(")[0]

    @property
    def key(self) -> tuple[str, str, str]:
        return self.ours, self.library, self.method

    def spec(self, how: How) -> str:
        """Our method as it is named in runs of this kind."""
        return self.ours.format(epochs=how.epochs, lr=how.lr)

    def asked(self, how: How) -> dict[str, Any]:
        """The library's options in runs of this kind."""
        known = {"{epochs}": how.epochs, "{lr}": how.lr, "{lr/parties}": how.lr / PARTIES}
        return {name: known.get(value, value) if isinstance(value, str) else value for name, value in self.options.items()}


PARTIES = 10
SPLIT: dict[str, Any] = {"split": True}
PERSONAL: dict[str, Any] = {"watched": "test_metrics_personalized"}

MATCHES = [
    Match("solo", "pfllib", "serverlocal.Local"),
    Match("fedavg", "pfllib", "serveravg.FedAvg", SPLIT),
    Match("fedavg", "flower", "FedAvg"),
    Match("fedavg", "fluke", "fedavg.FedAVG"),
    Match("fedprox(mu=0.1)", "pfllib", "serverprox.FedProx", {"mu": 0.1}),
    Match("scaffold", "pfllib", "serverscaffold.SCAFFOLD", {"server_learning_rate": 1.0}),
    Match("moon(mu=1,tau=0.5)", "pfllib", "servermoon.MOON", SPLIT | {"mu": 1.0, "tau": 0.5}),
    Match(
        "fedgen(gen_steps=50,noise=64,hidden=64)",
        "pfllib",
        "servergen.FedGen",
        SPLIT
        | {"noise_dim": 64, "hidden_dim": 64, "generator_learning_rate": 0.005, "server_epochs": 50}
        | {"localize_feature_extractor": False},
        chance=True,
    ),
    Match(
        "fedavg+dbe(kappa=50,mu=0.1,init_mean=ema,init_epochs={epochs})",
        "pfllib",
        "serverdbe.FedDBE",
        SPLIT | {"kl_weight": 50.0, "momentum": 0.1},
    ),
    Match("ditto(lam=1)", "pfllib", "serverditto.Ditto", PERSONAL | {"mu": 1.0, "plocal_epochs": "{epochs}"}),
    Match("apfl", "pfllib", "serverapfl.APFL", {"alpha": 0.5}),
    Match("fedper", "pfllib", "serverper.FedPer", SPLIT),
    Match("fedrep(head_epochs=2)", "pfllib", "serverrep.FedRep", SPLIT | {"plocal_epochs": 2}),
    Match("fedbabu(finetune_epochs=0)", "pfllib", "serverbabu.FedBABU", SPLIT | {"fine_tuning_epochs": 0}),
    Match("fedrod", "pfllib", "serverrod.FedROD", SPLIT),
    Match("lg-fedavg", "pfllib", "serverlg.LG_FedAvg", SPLIT),
    Match("fd(gamma=1,distance=ce)", "pfllib", "serverfd.FD", {"lamda": 1.0}),
    Match("per-fedavg(alpha={lr})", "pfllib", "serverperavg.PerAvg", chance=True),
    Match(
        "pfedme(lam=15,inner_lr=0.01,inner_steps=5,beta=1)",
        "pfllib",
        "serverpFedMe.pFedMe",
        PERSONAL | {"lamda": 15.0, "p_learning_rate": 0.01, "K": 5, "beta": 1.0, "alike": True, "mended": "own_thetas"},
    ),
    Match(
        "fedfomo(models=5,epsilon=0)",
        "pfllib",
        "serverfomo.FedFomo",
        {"M": 5, "held_out": 5},
        {"last_batch": "drop"},
    ),
    Match(
        "apple(mix_lr=0,mu=0)",
        "pfllib",
        "serverapple.APPLE",
        {"dr_learning_rate": 0.0, "mu": 0.0, "L": 0.1, "local_learning_rate": "{lr/parties}", "mended": "cores_sent"},
    ),
    Match(
        "apple(mix_lr=0.001,mu=0.1,until=0.1)",
        "pfllib",
        "serverapple.APPLE",
        {"dr_learning_rate": 0.001, "mu": 0.1, "L": 0.1},
    ),
    Match(
        "fedproto(weights=uniform,min_count=1)",
        "pfllib",
        "serverproto.FedProto",
        SPLIT | {"lamda": 1.0, "mended": "prototypes_after"},
    ),
    Match(
        "fedtgp(lam=10,min_count=1)",
        "htfllib",
        "servertgp.FedTGP",
        {"from_files": True, "save_folder_name": "temp", "feature_dim": 200, "lamda": 10.0}
        | {"server_epochs": 100, "margin_threthold": 100.0, "mended": "sure_roots"},
        first="F",
    ),
    Match(
        "fedala(p=1,s=80,eta=1)",
        "pfllib",
        "serverala.FedALA",
        {"layer_idx": 2, "rand_percent": 80, "eta": 1.0},
        chance=True,
    ),
    Match(
        "fedala(p=1,s=100,eta=1)",
        "pfllib",
        "serverala.FedALA",
        {"layer_idx": 2, "rand_percent": 100, "eta": 1.0, "mended": "mixed_before"},
    ),
    Match(
        "fedcp(lam=5)",
        "pfllib",
        "servercp.FedCP",
        SPLIT | {"lamda": 5.0, "mended": "sure_policy"},
        first="theta",
    ),
    Match(
        "gpfl(lam=0.01,mu=0.1)",
        "pfllib",
        "servergpfl.GPFL",
        SPLIT | {"lamda": 0.01, "mu": 0.1, "mended": "looked_up"},
        first="theta",
    ),
    Match("q-ffl(q=1)", "flower", "QFedAvg", {"q": 1.0, "client_learning_rate": "{lr}"}),
    Match("fedavg+serveropt(opt=momentum)", "flower", "FedAvgM", {"server_momentum": 0.9}),
    Match("fedavg+serveropt(opt=adam)", "flower", "FedAdam", {"eta": 0.01, "beta_1": 0.9, "beta_2": 0.99, "tau": 0.001}),
    Match("fedavg+serveropt(opt=momentum)", "fluke", "fedavgm.FedAVGM", {"server": {"momentum": 0.9}}),
    Match(
        "fedavg+serveropt(opt=adam)",
        "fluke",
        "fedopt.FedOpt",
        {"server": {"mode": "adam", "lr": 0.01, "beta1": 0.9, "beta2": 0.99, "tau": 0.001}},
    ),
    Match("fedavg+median", "flower", "FedMedian"),
    Match("fedavg+trimmed(share=0.2)", "flower", "FedTrimmedAvg", {"beta": 0.2}),
    Match("fedavg+krum(f=2)", "flower", "Krum", {"num_malicious_nodes": 2}),
]
