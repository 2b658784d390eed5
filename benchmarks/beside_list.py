"""What `beside.py` compares: methods of ours, and what other libraries have of them, with options
that mean the same.
"""

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
    network: str = "mlp2"
    why: str = ""
    """What differs, in a sentence."""

    @property
    def name(self) -> str:
        return self.ours.partition("(")[0]

    @property
    def mended(self) -> str:
        """Which function mends the library's version, if any."""
        return str(self.options.get("mended", ""))

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.ours, self.library, self.method, self.mended

    def spec(self, how: How) -> str:
        """Our method as it is named in runs of this kind."""
        return self.ours.format(epochs=how.epochs, lr=how.lr)

    def asked(self, how: How) -> dict[str, Any]:
        """The library's options in runs of this kind."""
        known = {"{epochs}": how.epochs, "{lr}": how.lr, "{lr/parties}": how.lr / PARTIES}

        def filled(given: dict[str, Any]) -> dict[str, Any]:
            return {
                name: (
                    filled(value)
                    if isinstance(value, dict)
                    else known.get(value, value)
                    if isinstance(value, str)
                    else value
                )
                for name, value in given.items()
            }

        return filled(self.options)


PARTIES = 10
SPLIT: dict[str, Any] = {"split": True}
PERSONAL: dict[str, Any] = {"watched": "test_metrics_personalized"}
FILES: dict[str, Any] = {"from_files": True, "save_folder_name": "temp", "feature_dim": 200}
STEPS = "server_lr=0.01,beta1=0.9,beta2=0.99,tau=0.001"
ADAPTIVE: dict[str, Any] = {"eta": 0.01, "beta_1": 0.9, "beta_2": 0.99, "tau": 0.001}
FIRST: dict[str, Any] = {"mended": "first_moments"}
MOMENTS: dict[str, Any] = {"lr": 0.01, "beta1": 0.9, "beta2": 0.99, "tau": 0.001}
ALA: dict[str, Any] = {
    "client": {"ala_sample_size": 1.0, "conergence_threshold": 0.1},
    "watched": "taken_over",
}
APFL: dict[str, Any] = {"client": {"lam": 0.5}, "server": {"tau": 1}}
PFEDME: dict[str, Any] = {
    "client": {"k": 5},
    "optimizer": {"lamda": 5.0, "mu": 0.0},
    "watched": "trained",
}
PFEDME |= {"server": {"beta": 1.0, "weighted": False}}
CLIPPING = "DifferentialPrivacyServerSideFixedClipping"
CLIPPED: dict[str, Any] = {"inside": "FedAvg", "alike": True, "clipping_norm": 0.5}

LISTED = [
    Match("solo", "pfllib", "serverlocal.Local"),
    Match(
        "solo",
        "pfllib",
        "servermtl.FedMTL",
        {"itk": 4000},
        why=(
            "its regulariser is made of copies of the weights (`state_dict`), so that no gradient"
            " comes of it: PFLlib's FedMTL is everybody alone."
        ),
    ),
    Match("solo", "htfllib", "serverlocal.Local", FILES),
    Match("fedavg", "pfllib", "serveravg.FedAvg", SPLIT),
    Match("fedavg", "flower", "FedAvg"),
    Match("fedavg", "fluke", "fedavg.FedAVG"),
    Match("fedbn", "pfllib", "serverbn.FedBN", network="normed"),
    Match("fedprox(mu=0.1)", "pfllib", "serverprox.FedProx", {"mu": 0.1}),
    Match(
        "fedprox(mu=0.1)",
        "flower",
        "FedProx",
        {"proximal_mu": 0.1},
        why=(
            "Flower's strategy sends μ and leaves the term to the parties; its documentation prints"
            " norms there, not their squares, and that is what was run. The paper's eq. 2 has (μ/2)"
            " ‖w − w^t‖²."
        ),
    ),
    Match(
        "fedprox(mu=0.1)",
        "flower",
        "FedProx",
        {"proximal_mu": 0.1, "mended": "squared"},
        why="with squares the two are the same.",
    ),
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
    Match(
        "ditto(lam=1)",
        "pfllib",
        "serverditto.Ditto",
        PERSONAL | {"mu": 1.0, "plocal_epochs": "{epochs}"},
    ),
    Match(
        "apfl",
        "pfllib",
        "serverapfl.APFL",
        {"alpha": 0.5},
        why=(
            "PFLlib trains v_i by its own loss, adds 0.02 α to α's gradient, and puts the mixture"
            " in v_i's place after every round. Algorithm 1 of the paper takes v_i's gradient at"
            " the mixture, α_i ∇f_i(v̄_i), and keeps v_i; so do we."
        ),
    ),
    Match("fedper", "pfllib", "serverper.FedPer", SPLIT),
    Match("fedrep(head_epochs=2)", "pfllib", "serverrep.FedRep", SPLIT | {"plocal_epochs": 2}),
    Match(
        "fedbabu(finetune_epochs=0)",
        "pfllib",
        "serverbabu.FedBABU",
        SPLIT | {"fine_tuning_epochs": 0},
    ),
    Match("fedrod", "pfllib", "serverrod.FedROD", SPLIT),
    Match("lg-fedavg", "pfllib", "serverlg.LG_FedAvg", SPLIT),
    Match(
        "lg-fedavg",
        "htfllib",
        "serverlg.LG_FedAvg",
        FILES,
        why=(
            "HtFLlib never shuffles: a party has the same batches in every round. Algorithm 1 draws"
            " them."
        ),
    ),
    Match(
        "lg-fedavg",
        "htfllib",
        "serverlg.LG_FedAvg",
        FILES | {"mended": "shuffled"},
        why="shuffled, the two are the same.",
    ),
    Match(
        "fd(gamma=1,distance=ce)",
        "pfllib",
        "serverfd.FD",
        {"lamda": 1.0, "mended": "soft_targets"},
        why=(
            "PFLlib hands mean logits to cross-entropy as if they were probabilities. That is a loss"
            " without a lower bound: as it is, no number is left after some rounds (10.2 %, class 0"
            " for all). The paper compares softmax outputs; mended so. PFLlib also takes means in"
            " passing, while weights still move, and counts parties alike, ours are of the trained"
            " model and by sample counts."
        ),
    ),
    Match(
        "fd(gamma=1,distance=ce)",
        "pfllib",
        "serverfd.FD",
        {"lamda": 1.0, "mended": "trained_answers"},
        why="with means of the trained model, by sample counts: then the two are the same.",
    ),
    Match(
        "fd(gamma=1,distance=ce)",
        "htfllib",
        "serverfd.FD",
        FILES | {"lamda": 1.0, "mended": "soft_targets_filed"},
        why="as PFLlib's, which was mended in the same place; HtFLlib never shuffles, besides.",
    ),
    Match(
        "per-fedavg(alpha={lr})",
        "pfllib",
        "serverperavg.PerAvg",
        chance=True,
        why=(
            "PFLlib draws another batch to adapt by in every evaluation, so that its curves jump"
            " more; ours is drawn once. Which samples meet in a pair of batches is chance, on whole"
            " batches too. Where all samples of a party are one sample, twelve rounds are the same"
            " answer by answer."
        ),
    ),
    Match(
        "pfedme(lam=15,inner_lr=0.01,inner_steps=5,beta=1)",
        "pfllib",
        "serverpFedMe.pFedMe",
        PERSONAL
        | {
            "lamda": 15.0,
            "p_learning_rate": 0.01,
            "K": 5,
            "beta": 1.0,
            "alike": True,
            "mended": "own_thetas",
        },
        why=(
            "what PFLlib calls personal parameters is the list of the model in training, which the"
            " next received model overwrites: it measures the global model. Mended, so that θ_i is"
            " measured; the weight decay of 0.001 that nobody asked for is off, and parties count"
            " alike, as Algorithm 1 prints."
        ),
    ),
    Match(
        "fedfomo(models=5,epsilon=0)",
        "pfllib",
        "serverfomo.FedFomo",
        {"M": 5, "held_out": 5},
        {"last_batch": "drop"},
        why=(
            "PFLlib never shuffles. Of models with equal affinities it sends the first (ours: any)."
            " If no model does better, it goes on from what was trained, where the paper's update"
            " leaves θ_i as it is."
        ),
    ),
    Match(
        "fml(alpha=0.5,beta=0.5)",
        "pfllib",
        "serverfml.FML",
        {"alpha": 0.5, "beta": 0.5},
        why=(
            "PFLlib divides KL by the number of classes too, lets each loss move both models, and"
            " averages parties alike. KL is a sum over classes; the method's losses are each one"
            " model's, as in deep mutual learning, from which it comes."
        ),
    ),
    Match(
        "fml(alpha=0.5,beta=0.5)",
        "pfllib",
        "serverfml.FML",
        {"alpha": 0.5, "beta": 0.5, "mended": "constant_answers"},
        why="what is said above mended: the two are the same.",
    ),
    Match(
        "fml(alpha=0.5,beta=0.5)",
        "htfllib",
        "serverfml.FML",
        FILES | {"alpha": 0.5, "beta": 0.5},
        why="as PFLlib's; and HtFLlib never shuffles.",
    ),
    Match(
        "fed-mtl(relation=surrogate)",
        "pfllib",
        "servermtl.FedMTL",
        {"itk": 4000},
        why=(
            "PFLlib's is everybody alone, see above; ours has the regulariser, whose usual weight"
            " is next to nothing."
        ),
    ),
    Match(
        "apple(mix_lr=0,mu=0)",
        "pfllib",
        "serverapple.APPLE",
        {
            "dr_learning_rate": 0.0,
            "mu": 0.0,
            "L": 0.1,
            "local_learning_rate": "{lr/parties}",
            "mended": "cores_sent",
        },
        why=(
            "with p fixed at p_0, and what is said below mended, the core models are trained alike."
        ),
    ),
    Match(
        "apple(mix_lr=0.001,mu=0.1,until=0.1)",
        "pfllib",
        "serverapple.APPLE",
        {"dr_learning_rate": 0.001, "mu": 0.1, "L": 0.1},
        why=(
            "PFLlib multiplies the learning rate by the number of parties. It sends the mixture"
            " where the paper sends the core model, and lets parties see what others trained in the"
            " same round. It starts p at 1/N where the paper has n_i/n, and has means over a tensor"
            " where p's gradient is a sum."
        ),
    ),
    Match(
        "fedproto(weights=uniform,min_count=1)",
        "pfllib",
        "serverproto.FedProto",
        SPLIT | {"lamda": 1.0, "mended": "prototypes_after"},
        why=(
            "PFLlib takes prototypes in passing, while weights still move; by eq. 3 they are the"
            " trained model's means. Mended by calling a function for that which PFLlib has and"
            " does not use."
        ),
    ),
    Match(
        "fedproto(weights=uniform,min_count=1)",
        "htfllib",
        "serverproto.FedProto",
        FILES | {"lamda": 1.0, "mended": "prototypes_filed"},
        why="as PFLlib's: mended by the function that HtFLlib's FedTGP has for it.",
    ),
    Match(
        "fedtgp(lam=10,min_count=1,server_lr=0)",
        "htfllib",
        "servertgp.FedTGP",
        FILES
        | {
            "lamda": 10.0,
            "server_epochs": 100,
            "margin_threthold": 100.0,
            "mended": "sure_roots",
        },
        first="F",
        why=(
            "HtFLlib takes prototypes from the model on disk before it puts the trained one there,"
            " so that they are those of the round before. Its distances are roots of"
            " differences that rounding makes negative, after which nothing is a number. Both"
            " mended."
        ),
    ),
    Match(
        "fedala(p=1,s=80,eta=1)",
        "pfllib",
        "serverala.FedALA",
        {"layer_idx": 2, "rand_percent": 80, "eta": 1.0},
        chance=True,
        why=(
            "PFLlib learns W_i anew on the newest global model before it measures. We deploy the"
            " newest global model mixed in by W_i as the party learnt it last, since what is"
            " deployed trains nothing."
        ),
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
        why=(
            "PFLlib's policy is drawn by Gumbel's softmax, in tests too, and its condition is"
            " random in round 1. Mended to a plain softmax (our default) and to the head's weights,"
            " from the same initial policy. On whole batches answers are the same for eleven"
            " rounds, until rounding has grown; at a learning rate of 0.02 they are the same for"
            " all twenty."
        ),
    ),
    Match(
        "gpfl(lam=0.01,mu=0.1)",
        "pfllib",
        "servergpfl.GPFL",
        SPLIT | {"lamda": 0.01, "mu": 0.1, "mended": "looked_up"},
        first="theta",
        why=(
            "PFLlib looks its conditions up in the embeddings that the party itself had trained,"
            " and has 0 for them in round 1; the authors' figure has those that are sent. Mended,"
            " from the same initial embeddings and valve. On whole batches answers are the same for"
            " nine rounds, until rounding has grown; at a learning rate of 0.02 they are for all"
            " twenty."
        ),
    ),
    Match("q-ffl(q=1)", "flower", "QFedAvg", {"q": 1.0, "client_learning_rate": "{lr}"}),
    Match("fedavg+serveropt(optimizer=momentum)", "flower", "FedAvgM", {"server_momentum": 0.9}),
    Match(
        f"fedavg+serveropt(optimizer=adam,{STEPS})",
        "flower",
        "FedAdam",
        ADAPTIVE,
        why=(
            "Flower begins with v = 0 and corrects m and v for it, as Adam does. The paper's"
            " Algorithm 2 begins with v ≥ τ² and has no correction."
        ),
    ),
    Match(
        f"fedavg+serveropt(optimizer=adam,{STEPS})",
        "flower",
        "FedAdam",
        ADAPTIVE | FIRST,
        why="with v = τ² before round 1, and without the correction: then the two are the same.",
    ),
    Match(
        f"fedavg+serveropt(optimizer=yogi,{STEPS})",
        "flower",
        "FedYogi",
        ADAPTIVE,
        why=(
            "Flower begins with v = 0, where Algorithm 2 has v ≥ τ²: what changes little moves up"
            " to twice as far."
        ),
    ),
    Match(
        f"fedavg+serveropt(optimizer=yogi,{STEPS})",
        "flower",
        "FedYogi",
        ADAPTIVE | FIRST,
        why="with v = τ² before round 1: then the two are the same.",
    ),
    Match(
        "fedavg+serveropt(optimizer=adagrad,server_lr=0.01)",
        "flower",
        "FedAdagrad",
        {"eta": 0.01, "tau": 0.001},
        why="Flower begins with v = 0, where Algorithm 2 has v ≥ τ².",
    ),
    Match(
        "fedavg+serveropt(optimizer=adagrad,server_lr=0.01)",
        "flower",
        "FedAdagrad",
        {"eta": 0.01, "tau": 0.001} | FIRST,
        why="with v = τ² before round 1: then the two are the same.",
    ),
    Match("fedavg+median", "flower", "FedMedian"),
    Match("fedavg+trimmed(share=0.2)", "flower", "FedTrimmedAvg", {"beta": 0.2}),
    Match("fedavg+krum(f=2)", "flower", "Krum", {"num_malicious_nodes": 2}),
    Match(
        "fedavg+krum(f=2,m=5)",
        "flower",
        "MultiKrum",
        {"num_malicious_nodes": 2, "num_nodes_to_select": 5, "alike": True},
        why=(
            "Flower weighs the m replies by sample counts; the paper's multi-Krum is their plain"
            " mean, and so it is where parties tell equal counts, as they did here."
        ),
    ),
    Match(
        "fedavg+dp(level=party,noise=0,clip=0.5)",
        "flower",
        CLIPPING,
        CLIPPED | {"noise_multiplier": 0.0},
    ),
    Match(
        "fedavg+dp(level=party,noise=0.1,clip=0.5)",
        "flower",
        CLIPPING,
        CLIPPED | {"noise_multiplier": 0.1},
        chance=True,
    ),
    Match("fedbn", "fluke", "fedbn.FedBN", {"watched": "received"}, network="normed"),
    Match("fedprox(mu=0.1)", "fluke", "fedprox.FedProx", {"client": {"mu": 0.1}}),
    Match("scaffold", "fluke", "scaffold.SCAFFOLD", {"server": {"weighted": False}}),
    Match("moon(mu=1,tau=0.5)", "fluke", "moon.MOON", {"client": {"mu": 1.0, "tau": 0.5}}),
    Match(
        "ditto(lam=1)",
        "fluke",
        "ditto.Ditto",
        {"client": {"lam": 1.0, "tau": "{epochs}"}, "watched": "personal"},
    ),
    Match(
        "apfl(adaptive=false)",
        "fluke",
        "apfl.APFL",
        APFL | {"watched": "personal"},
        why=(
            "in fluke v_i is never trained: the mixture is a copy, whose gradient no optimizer has,"
            " and takes v_i's place after every round. Algorithm 1 has v_i ← v_i − η ∇_v f_i(v̄_i),"
            " and keeps it. fluke does not adapt α."
        ),
    ),
    Match(
        "apfl(adaptive=false)",
        "fluke",
        "apfl.APFL",
        APFL | {"watched": "mixed", "mended": "own_gradient"},
        why=(
            "with a gradient for v_i, at the mixture of the step before, and v_i kept: then the two"
            " are the same."
        ),
    ),
    Match("fedper", "fluke", "fedper.FedPer", {"shared": "encoder", "watched": "received"}),
    Match(
        "fedrep(head_epochs={epochs})",
        "fluke",
        "fedrep.FedRep",
        {"shared": "encoder", "watched": "received", "client": {"tau": "{epochs}"}},
    ),
    Match(
        "fedbabu(finetune_epochs=0)",
        "fluke",
        "fedbabu.FedBABU",
        {
            "shared": "encoder",
            "watched": "received",
            "client": {"mode": "full", "fine_tuning_epochs": 0},
        },
    ),
    Match("fedrod", "fluke", "fedrod.FedROD", {"watched": "two_heads"}),
    Match("lg-fedavg", "fluke", "lg_fedavg.LGFedAVG", {"shared": "head", "watched": "received"}),
    Match(
        "per-fedavg(alpha={lr})",
        "fluke",
        "per_fedavg.PerFedAVG",
        {"client": {"mode": "FO", "beta": "{lr}"}, "watched": "adapted"},
        chance=True,
        why=(
            "fluke makes the second step from w̃, where the first has led; Algorithm 1 makes it"
            " from w: w ← w − β ∇f_i(w̃). So fluke's is FedAvg with twice the steps. It measures w"
            " as it is; here both were measured after a party's own step."
        ),
    ),
    Match(
        "per-fedavg(alpha={lr})",
        "fluke",
        "per_fedavg.PerFedAVG",
        {"client": {"mode": "FO", "beta": "{lr}"}, "watched": "adapted", "mended": "from_before"},
        chance=True,
        why="with the second step from w.",
    ),
    Match(
        "pfedme(lam=5,inner_lr={lr},inner_steps=5,beta=1)",
        "fluke",
        "pfedme.PFedMe",
        PFEDME,
        why=(
            "fluke holds θ to itself, so that λ does nothing, and sends θ: it is FedAvg with K"
            " steps on every batch. Algorithm 1 holds θ to w_i, which begins at w in every round"
            " and is what is sent."
        ),
    ),
    Match(
        "pfedme(lam=5,inner_lr={lr},inner_steps=5,beta=1)",
        "fluke",
        "pfedme.PFedMe",
        PFEDME | {"mended": "held_to_copies"},
        why="held to w_i, and w_i sent: then the two are the same.",
    ),
    Match(
        "fedproto(weights=uniform,min_count=1)",
        "fluke",
        "fedproto.FedProto",
        {
            "client": {"n_protos": 10, "lam": 1.0},
            "watched": "nearest",
            "mended": "prototypes_after",
        },
        why=(
            "as in PFLlib, prototypes are taken in passing; mended. By default, fluke answers by a"
            " party's own prototypes, and not at all where it has none of class 0. The global ones"
            " were measured, which eq. 4 has."
        ),
    ),
    Match(
        "fedala(p=1,s=100,eta=1)",
        "fluke",
        "fedala.FedALA",
        ALA,
        why=(
            "measured as we do, and with the authors' threshold for when W_i has converged. To decide"
            " that, fluke looks at the losses of the last ten batches, and the authors' code at those"
            " of ten passes. So fluke's W_i is not there yet in round 2, where Algorithm 1 learns it"
            " until it converges. Later rounds are alike."
        ),
    ),
    Match(
        "fedala(p=1,s=100,eta=1)",
        "fluke",
        "fedala.FedALA",
        ALA | {"mended": "ten_passes"},
        why="with the losses of ten passes.",
    ),
    Match(
        "fedavg+serveropt(optimizer=momentum)",
        "fluke",
        "fedavgm.FedAVGM",
        why=(
            "fluke sets the momentum to 0 after round 1 instead of before it: that round is lost,"
            " and the rest is one late. Hsu et al. (4.3) have v ← β v + Δw from the first round on."
        ),
    ),
    Match(
        "fedavg+serveropt(optimizer=momentum)",
        "fluke",
        "fedavgm.FedAVGM",
        {"mended": "from_zero"},
        why="with 0 before round 1: then the two are the same.",
    ),
    Match(
        f"fedavg+serveropt(optimizer=adam,{STEPS})",
        "fluke",
        "fedopt.FedOpt",
        {"server": MOMENTS | {"mode": "adam"}},
        why=(
            "fluke multiplies Δ by η before it takes moments, and the step once more, since both"
            " are called `lr`: changes vanish beside τ. And it begins with v = 0. Algorithm 2 has η"
            " in the last line only, and v ≥ τ²."
        ),
    ),
    Match(
        f"fedavg+serveropt(optimizer=adam,{STEPS})",
        "fluke",
        "fedopt.FedOpt",
        {"server": MOMENTS | {"mode": "adam"}} | FIRST,
        why=(
            "with η once, and v = τ² before round 1: then the two are the same, as they are for the"
            " next two."
        ),
    ),
    Match(
        f"fedavg+serveropt(optimizer=yogi,{STEPS})",
        "fluke",
        "fedopt.FedOpt",
        {"server": MOMENTS | {"mode": "yogi"}} | FIRST,
    ),
    Match(
        f"fedavg+serveropt(optimizer=adagrad,{STEPS})",
        "fluke",
        "fedopt.FedOpt",
        {"server": MOMENTS | {"mode": "adagrad"}} | FIRST,
    ),
    Match(
        "fedavg+dp(noise=0,clip=1)",
        "fluke",
        "dpfedavg.DPFedAVG",
        {"client": {"noise_mul": 0.0, "max_grad_norm": 1.0}},
    ),
    Match(
        "fedavg+dp(noise=0.5,clip=1)",
        "fluke",
        "dpfedavg.DPFedAVG",
        {"client": {"noise_mul": 0.5, "max_grad_norm": 1.0}},
        chance=True,
    ),
]

LIBRARIES = ("pfllib", "htfllib", "flower", "fluke")
NAMED = [m.name for m in LISTED]
MATCHES = sorted(LISTED, key=lambda m: (NAMED.index(m.name), LIBRARIES.index(m.library)))
"""Method by method, in the order in which they are listed first."""
