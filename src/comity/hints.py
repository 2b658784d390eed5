"""What people type who come from elsewhere, and what it is called here. Suggestions only: nothing
is taken for something else.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

MOST_NAMED = 5  # names in a suggestion


def _spread(table: dict[str, str]) -> dict[str, str]:
    """`ours: "their words"` turned round, spelled as `plain` spells."""
    return {plain(word): ours for ours, words in table.items() for word in words.split()}


def plain(name: str) -> str:
    """A name without what people spell in several ways: case, hyphens, underscores, dots."""
    return "".join(sign for sign in name.lower() if sign not in "-_. ")


NAMES: dict[str, dict[str, str]] = {
    "dataset": _spread(
        {
            "fashion-mnist": "fmnist fashion fashionmnist fashion_mnist",
            "mnist-m": "mnistm",
            "femnist": "leaf-femnist",
            "digits-five": "digit5 digits5 digit-five",
            "tiny-imagenet": "imagenet tinyimagenet tiny",
            "office-caltech": "office officecaltech10 office-home",
            "adult": "income census",
            "agnews": "news",
            "har": "uci-har activity",
            "market1501": "market",
            "heart": "heart-disease fed-heart-disease",
        }
    ),
    "algorithm": _spread(
        {
            "solo": "local alone standalone local-only single isolated",
            "centralized": "central centralised pooled centralized-training",
            "fed-sps": "sps",
            "lg-fedavg": "lg lgfedavg",
            "fd": "feddistill fed-distill distillation",
            "fedavg": "average averaging avg",
            "relay-p2p": "p2p",
        }
    ),
    "model": _spread(
        {
            "mlp2": "mlp dnn",
            "cnn4": "cnn convnet",
            "lenet5": "lenet",
            "linear": "logistic logreg softmax mclr logistic-regression",
            "bilstm": "lstm rnn gru",
        }
    ),
    "partition": _spread(
        {
            "dirichlet": "noniid non-iid dir lda label-skew labelskew hetero-dir",
            "pathological": "pat patho classes label",
            "iid": "homo uniform random homogeneous",
            "quantity": "quantity-skew unbalanced",
            "natural": "site sites subject users by-user real",
            "domain": "feature feature-skew domains",
        }
    ),
    "metric": _spread(
        {
            "accuracy": "acc top1",
            "macro_f1": "f1 f1-macro f1-score",
            "auc": "auroc roc roc-auc",
            "balanced_accuracy": "bacc balanced",
            "sensitivity": "recall tpr",
            "specificity": "tnr",
            "r2": "rsquared explained",
        }
    ),
    "optimizer": _spread({"sgd": "momentum", "adam": "adamw"}),
    "option of fed-sps called": _spread({"collab_steps": "peer_steps", "units": "pixel pixels"}),
    "setting called": _spread(
        {
            "data": "dataset data-set",
            "algorithm": "method algo strategy",
            "parties": (
                "clients num-clients n-clients nb-clients num-users users num-parties nodes sites"
                " total-clients"
            ),
            "rounds": (
                "num-rounds n-rounds global-rounds comm-rounds communication-rounds iterations"
                " iters"
            ),
            "epochs": "local-epochs local-ep num-epochs client-epochs epoch",
            "steps": "local-steps local-iterations local-updates",
            "lr": "learning-rate eta local-learning-rate client-lr",
            "batch": "batch-size bs local-bs batchsize",
            "participation": (
                "fraction frac join-ratio fraction-fit client-fraction sample-rate sampling-rate"
                " sample-ratio"
            ),
            "model": "arch net network backbone architecture",
            "seed": "random-seed manual-seed",
            "workers": "num-workers n-workers jobs n-jobs processes",
            "engine": "backend simulator",
            "device": "gpu cuda accelerator",
            "patience": "early-stopping early-stop",
            "eval_every": "eval-freq eval-gap test-every eval-interval eval-frequency",
            "validation": "val val-split validation-split val-ratio",
            "test": "test-split test-size test-ratio",
            "partition": "split distribution non-iid noniid iid dir dirichlet heterogeneity",
            "newcomers": "new-clients num-new-clients unseen",
            "absent": "dropout-rate client-drop-rate stragglers drop-rate",
            "augment": "augmentation transforms",
            "optimizer": "optim opt local-optimizer",
        }
    ),
}
"""By what is looked for: other names, and ours."""

EXAMPLES = {
    "data": "--data digits",
    "parties": "--parties 10",
    "partition": "--partition 'dirichlet(alpha=0.1)'",
    "device": "--device cuda",
    "participation": "--participation 0.5",
    "absent": "--absent 'random(offline=0.1)'",
    "augment": "--augment flip",
    "validation": "--validation 0.1",
    "test": "--test 'own(0.25)'",
}
"""How an option is given, where its name does not say it."""

OPTIONS = _spread(
    {
        "--partition 'dirichlet(alpha=0.1)'": "alpha dir-alpha dirichlet-alpha beta concentration",
        "--partition 'pathological(classes=2)'": (
            "classes-per-client shards shards-per-client ncls num-classes-per-client"
        ),
        "--out DIR": "output out-dir output-dir save-dir save o results log-dir logdir save-path",
        "--optimizer 'sgd(momentum=0.9)'": "momentum",
        "--optimizer 'sgd(decay=1e-4)'": "weight-decay wd l2",
        "--track tensorboard": "tensorboard tb wandb logger",
        "--track mlflow": "mlflow",
    }
)
"""Other names of options that are no settings, or settings of which only a part is meant."""

COMMANDS = _spread(
    {
        "run": "train fit start simulate exec experiment",
        "compare": "bench benchmark versus vs comparison",
        "tune": "search sweep grid grid-search hyperparameters optimize",
        "resume": "continue restart go-on",
        "report": "plot visualize visualise html page results",
        "list": "ls methods algorithms datasets models",
        "show": "info describe explain help",
        "watch": "monitor status tail dashboard",
        "plan": "cost estimate dry-run",
        "data import": "import load",
        "data inspect": "inspect stats",
        "data prepare": "download prepare",
        "data split": "deal split",
    }
)


def near(kind: str, name: str, known: Iterable[str], most: int = 1) -> list[str]:
    """Which of the known names may have been meant, the likeliest first; none if that cannot be
    guessed.
    """
    names = sorted(known)
    spelled = plain(name)
    others = NAMES.get("setting called" if kind.startswith("setting") else kind, {})
    if (meant := others.get(spelled)) in names:
        return [str(meant)]
    if same := [each for each in names if plain(each) in (spelled, f"{spelled}s")]:
        return same
    begin = [each for each in names if len(spelled) > 2 and plain(each).startswith(spelled)]
    if 0 < len(begin) <= MOST_NAMED:
        return begin
    lowered = {each.lower(): each for each in names}
    return [lowered[each] for each in get_close_matches(name.lower(), lowered, n=most, cutoff=0.6)]


def option(given: str, settings: Iterable[str]) -> str:
    """What to type instead of an option that there is not; nothing if that cannot be guessed."""
    spelled = plain(given.lstrip("-"))
    if spelled in OPTIONS:
        return OPTIONS[spelled]
    meant = NAMES["setting called"].get(spelled, spelled)
    if meant == "algorithm":
        return "the method's name without an option, as in: comity run fedavg"
    if meant not in settings:
        return ""
    flag = f"--{meant.replace('_', '-')}"
    return f"{flag}, as in {EXAMPLES[meant]}" if meant in EXAMPLES else flag
