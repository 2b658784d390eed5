"""Suggestions for unknown names: names that other software uses, and their names in Comity.

They appear in error messages only. Comity never replaces one name by another.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

MAX_SUGGESTIONS = 5


def _by_synonym(synonyms: dict[str, str]) -> dict[str, str]:
    """Invert `{name: "synonym synonym ..."}`; the synonyms are normalised."""
    return {normalise(word): name for name, words in synonyms.items() for word in words.split()}


def normalise(name: str) -> str:
    """Return a name in lower case without hyphens, underscores, dots and spaces."""
    return "".join(character for character in name.lower() if character not in "-_. ")


NAMES: dict[str, dict[str, str]] = {
    "dataset": _by_synonym(
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
    "algorithm": _by_synonym(
        {
            "solo": "local alone standalone local-only single isolated",
            "centralized": "central centralised pooled centralized-training",
            "fed-sps": "sps",
            "lg-fedavg": "lg lgfedavg",
            "fd": "feddistill fed-distill distillation",
            "fedavg": "average averaging avg",
            "relay-p2p": "p2p",
            "serveropt": "fedavgm fedadam fedyogi fedadagrad fedopt momentum",
        }
    ),
    "model": _by_synonym(
        {
            "mlp2": "mlp dnn",
            "cnn4": "cnn convnet",
            "lenet5": "lenet",
            "linear": "logistic logreg softmax mclr logistic-regression",
            "bilstm": "lstm rnn gru",
        }
    ),
    "partition": _by_synonym(
        {
            "dirichlet": "noniid non-iid dir lda label-skew labelskew hetero-dir",
            "pathological": "pat patho classes label",
            "iid": "homo uniform random homogeneous",
            "quantity": "quantity-skew unbalanced",
            "natural": "site sites subject users by-user real",
            "domain": "feature feature-skew domains",
        }
    ),
    "metric": _by_synonym(
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
    "optimizer": _by_synonym({"sgd": "momentum", "adam": "adamw"}),
    "option of fed-sps called": _by_synonym(
        {"collab_steps": "peer_steps", "units": "pixel pixels"}
    ),
    "setting called": _by_synonym(
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
            "precision": "amp mixed-precision autocast dtype bf16 bfloat16",
        }
    ),
}
"""Synonyms and their names in Comity, by the kind of the name."""

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
"""Examples for options whose values are not obvious."""

OPTIONS = _by_synonym(
    {
        "--partition 'dirichlet(alpha=0.1)'": "alpha dir-alpha dirichlet-alpha beta concentration",
        "--partition 'pathological(classes=2)'": (
            "classes-per-client shards shards-per-client ncls num-classes-per-client"
        ),
        "--out DIR": "output out-dir output-dir save-dir save o results log-dir logdir save-path",
        "--optimizer 'sgd(momentum=0.9)'": "momentum",
        "--optimizer 'sgd(decay=1e-4)'": "weight-decay wd l2",
        "--track tensorboard": "tensorboard tb logger",
        "--track mlflow": "mlflow",
        "--track wandb": "wandb weights-and-biases",
        "--record-messages": "tape record recording messages",
    }
)
"""Synonyms of options that are no settings, or that are a part of a setting."""

COMMANDS = _by_synonym(
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
        "data profile": "profile statistics histogram histograms quantiles",
        "data split": "deal split",
    }
)


def find_similar(kind: str, name: str, names: Iterable[str], limit: int = 1) -> list[str]:
    """Return the valid names that are most similar to an unknown name, the best first.

    Args:
        kind: what is named, as in "model"
        name: the unknown name
        names: the valid names
        limit: the most suggestions for a misspelt name
    """
    valid_names = sorted(names)
    normalised = normalise(name)
    synonyms = NAMES.get("setting called" if kind.startswith("setting") else kind, {})
    if (synonym := synonyms.get(normalised)) in valid_names:
        return [str(synonym)]
    if same := [
        valid for valid in valid_names if normalise(valid) in (normalised, f"{normalised}s")
    ]:
        return same
    longer = [
        valid
        for valid in valid_names
        if len(normalised) > 2 and normalise(valid).startswith(normalised)
    ]
    if 0 < len(longer) <= MAX_SUGGESTIONS:
        return longer
    lower_case = {valid.lower(): valid for valid in valid_names}
    matches = get_close_matches(name.lower(), lower_case, n=limit, cutoff=0.6)
    return [lower_case[match] for match in matches]


def suggest_option(flag: str, settings: Iterable[str]) -> str:
    """Return what to type instead of an unknown option; an empty text if there is no suggestion."""
    normalised = normalise(flag.lstrip("-"))
    if normalised in OPTIONS:
        return OPTIONS[normalised]
    setting = NAMES["setting called"].get(normalised, normalised)
    if setting == "algorithm":
        return "the method's name without an option, as in: comity run fedavg"
    if setting not in settings:
        return ""
    suggestion = f"--{setting.replace('_', '-')}"
    return f"{suggestion}, as in {EXAMPLES[setting]}" if setting in EXAMPLES else suggestion
