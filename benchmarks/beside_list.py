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
    Match(
        "solo",
        "pfllib",
        "servermtl.FedMTL",
        {"itk": 4000},
        why="its regulariser is made of copies of the weights (`state_dict`), so that no gradient comes of it: PFLlib's FedMTL "
        "is everybody alone.",
    ),
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
        why="PFLlib draws ε uniformly from [0, 1]; the paper's is normal, as ours.",
    ),
    Match(
        "fedavg+dbe(kappa=50,mu=0.1,init_mean=ema,init_epochs={epochs})",
        "pfllib",
        "serverdbe.FedDBE",
        SPLIT | {"kl_weight": 50.0, "momentum": 0.1},
    ),
    Match("ditto(lam=1)", "pfllib", "serverditto.Ditto", PERSONAL | {"mu": 1.0, "plocal_epochs": "{epochs}"}),
    Match(
        "apfl",
        "pfllib",
        "serverapfl.APFL",
        {"alpha": 0.5},
        why="PFLlib trains v_i by its own loss, adds 0.02 α to α's gradient, and puts the mixture in v_i's place after every "
        "round. Algorithm 1 of the paper takes v_i's gradient at the mixture, α_i ∇f_i(v̄_i), and keeps v_i; so do we.",
    ),
    Match("fedper", "pfllib", "serverper.FedPer", SPLIT),
    Match("fedrep(head_epochs=2)", "pfllib", "serverrep.FedRep", SPLIT | {"plocal_epochs": 2}),
    Match("fedbabu(finetune_epochs=0)", "pfllib", "serverbabu.FedBABU", SPLIT | {"fine_tuning_epochs": 0}),
    Match("fedrod", "pfllib", "serverrod.FedROD", SPLIT),
    Match("lg-fedavg", "pfllib", "serverlg.LG_FedAvg", SPLIT),
    Match(
        "fd(gamma=1,distance=ce)",
        "pfllib",
        "serverfd.FD",
        {"lamda": 1.0, "mended": "soft_targets"},
        why="PFLlib hands mean logits to cross-entropy as if they were probabilities, a loss without a lower bound: as it is, no "
        "number is left after some rounds (10.2 %, class 0 for all). The paper compares softmax outputs; mended so. PFLlib also "
        "takes means in passing, while weights still move, and counts parties alike, ours are of the trained model and by "
        "sample counts.",
    ),
    Match(
        "per-fedavg(alpha={lr})",
        "pfllib",
        "serverperavg.PerAvg",
        chance=True,
        why="PFLlib draws another batch to adapt by in every evaluation, so that its curves jump more; ours is drawn once. Which "
        "samples meet in a pair of batches is chance, on whole batches too; where all samples of a party are one sample, "
        "twelve rounds are the same answer by answer.",
    ),
    Match(
        "pfedme(lam=15,inner_lr=0.01,inner_steps=5,beta=1)",
        "pfllib",
        "serverpFedMe.pFedMe",
        PERSONAL | {"lamda": 15.0, "p_learning_rate": 0.01, "K": 5, "beta": 1.0, "alike": True, "mended": "own_thetas"},
        why="what PFLlib calls personal parameters is the list of the model in training, which the next received model "
        "overwrites: it measures the global model. Mended, so that θ_i is measured; the weight decay of 0.001 that nobody asked "
        "for is off, and parties count alike, as Algorithm 1 prints.",
    ),
    Match(
        "fedfomo(models=5,epsilon=0)",
        "pfllib",
        "serverfomo.FedFomo",
        {"M": 5, "held_out": 5},
        {"last_batch": "drop"},
        why="PFLlib never shuffles, sends of models with equal affinities the first (ours: any), and goes on from what was "
        "trained if no model does better, where the paper's update leaves θ_i as it is.",
    ),
    Match(
        "fml(alpha=0.5,beta=0.5)",
        "pfllib",
        "serverfml.FML",
        {"alpha": 0.5, "beta": 0.5},
        why="PFLlib divides KL by the number of classes too, lets each loss move both models, and averages parties alike.",
    ),
    Match(
        "fml(alpha=0.5,beta=0.5,deploy=personal)",
        "pfllib",
        "serverfml.FML",
        {"alpha": 0.5, "beta": 0.5, "mended": "constant_answers"},
        why="what is said above mended: the two are the same.",
    ),
    Match(
        "fed-mtl(relation=surrogate)",
        "pfllib",
        "servermtl.FedMTL",
        {"itk": 4000},
        why="PFLlib's is everybody alone, see above; ours has the regulariser, whose usual weight is next to nothing.",
    ),
    Match(
        "apple(mix_lr=0,mu=0)",
        "pfllib",
        "serverapple.APPLE",
        {"dr_learning_rate": 0.0, "mu": 0.0, "L": 0.1, "local_learning_rate": "{lr/parties}", "mended": "cores_sent"},
        why="with p fixed at p_0, and what is said below mended, the core models are trained alike.",
    ),
    Match(
        "apple(mix_lr=0.001,mu=0.1,until=0.1)",
        "pfllib",
        "serverapple.APPLE",
        {"dr_learning_rate": 0.001, "mu": 0.1, "L": 0.1},
        why="PFLlib multiplies the learning rate by the number of parties, sends the mixture where the paper sends the core "
        "model, lets parties see what others trained in the same round, starts p at 1/N where the paper has n_i/n, and has means "
        "over a tensor where p's gradient is a sum.",
    ),
    Match(
        "fedproto(weights=uniform,min_count=1)",
        "pfllib",
        "serverproto.FedProto",
        SPLIT | {"lamda": 1.0, "mended": "prototypes_after"},
        why="PFLlib takes prototypes in passing, while weights still move; by eq. 3 they are the trained model's means. Mended "
        "by calling a function for that which PFLlib has and does not use.",
    ),
    Match(
        "fedtgp(lam=10,min_count=1)",
        "htfllib",
        "servertgp.FedTGP",
        {"from_files": True, "save_folder_name": "temp", "feature_dim": 200, "lamda": 10.0}
        | {"server_epochs": 100, "margin_threthold": 100.0, "mended": "sure_roots"},
        first="F",
        why="HtFLlib takes prototypes from the model on disk before it puts the trained one there, so that they are those of the "
        "round before; and its distances are roots of differences that rounding makes negative, after which nothing is a number. "
        "Both mended.",
    ),
    Match(
        "fedala(p=1,s=80,eta=1)",
        "pfllib",
        "serverala.FedALA",
        {"layer_idx": 2, "rand_percent": 80, "eta": 1.0},
        chance=True,
        why="PFLlib learns W_i anew on the newest global model before it measures; we deploy the newest global model mixed in by "
        "W_i as the party learnt it last, since what is deployed trains nothing.",
    ),
    Match(
        "fedala(p=1,s=100,eta=1)",
        "pfllib",
        "serverala.FedALA",
        {"layer_idx": 2, "rand_percent": 100, "eta": 1.0, "mended": "mixed_before"},
        why="measured as we do, on all samples, see above: then the two are the same.",
    ),
    Match(
        "fedcp(lam=5)",
        "pfllib",
        "servercp.FedCP",
        SPLIT | {"lamda": 5.0, "mended": "sure_policy"},
        first="theta",
        why="PFLlib's policy is drawn by Gumbel's softmax, in tests too, and its condition is random in round 1. Mended to a "
        "plain softmax (our default) and to the head's weights, from the same initial policy.",
    ),
    Match(
        "gpfl(lam=0.01,mu=0.1)",
        "pfllib",
        "servergpfl.GPFL",
        SPLIT | {"lamda": 0.01, "mu": 0.1, "mended": "looked_up"},
        first="theta",
        why="PFLlib looks its conditions up in the embeddings that the party itself had trained, and has 0 for them in round 1; "
        "the authors' figure has those that are sent. Mended, from the same initial embeddings and valve.",
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
