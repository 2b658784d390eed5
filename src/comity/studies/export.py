"""A party's model to take along: weights, what was done to its inputs, a script that predicts, and a card."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from comity import algorithms, models
from comity.checksums import Checksum, with_crc, without_crc
from comity.core.codec import decode, encode
from comity.core.finite import first_not_finite
from comity.core.party import Party
from comity.core.record import record
from comity.core.samples import Array, PartyData, Samples
from comity.core.task import Task
from comity.core.training import Training
from comity.data.federation import Preprocess
from comity.errors import ComityError, Refusal
from comity.experiments.checkpoint import write_atomically
from comity.experiments.result import Deployed, Result
from comity.experiments.trust import check, code_in, mark

PREDICT = '''"""Predict with this model: python predict.py SAMPLES.npz (with an array x; or .npy) prints each sample's class.

Inputs are as the party has them, before any scaling; `model.json` says what is done to them. Where the model's network or
method is a Python file of somebody else's, --trust lets it run.
"""

import sys
from pathlib import Path

import numpy as np

from comity.errors import ComityError
from comity.studies.export import load
from comity.text import harmless

files = [argument for argument in sys.argv[1:] if argument != "--trust"]
if len(files) != 1:
    sys.exit("usage: python predict.py SAMPLES.npz [--trust]")
given = np.load(files[0], allow_pickle=False)
try:
    model = load(Path(__file__).parent, trust="--trust" in sys.argv)
except ComityError as why:
    sys.exit(harmless(str(why)))
for name, certainty in model.predict(given["x"] if hasattr(given, "files") else given):
    print(f"{harmless(name)}\\t{certainty:.4f}")
'''


@record
class State:
    """What an exported model consists of: the deployed parameters, and the method's own state, which may belong to its task."""

    theta: Any
    mine: Any


@dataclass(frozen=True)
class Exported:
    """A model that was exported."""

    deployed: Deployed
    preprocess: Preprocess
    names: tuple[str, ...]

    def predict(self, x: Array) -> list[tuple[str, float]]:
        """Class and certainty of each sample, given as the party has them."""
        scores = self.deployed.logits(self.preprocess(torch.as_tensor(np.asarray(x)))).softmax(1)
        best = scores.max(1)
        return [(self.names[i], float(p)) for i, p in zip(best.indices.tolist(), best.values.tolist(), strict=True)]


def export(result: Result, party: str, out: Path) -> None:
    """Write one party's model to a folder of its own."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise Refusal(f"{out} is there already: choose another --out.")
    job = result.job
    how = job.experiment
    if how.model == "modules":
        raise Refusal("A model of one's own modules is not exported: take result.model(party) in Python.")
    deployed = result.model(party)
    mine = result.state(party)
    if ruined := first_not_finite(State(deployed.theta, mine)):
        raise ComityError(f"The model of {party} is not exported: {ruined} is not finite, as its training has diverged.")
    federation = job.federation
    labels = federation.split.parties[party].labels
    names = federation.class_names or tuple(map(str, range(federation.classes)))
    own = how.party.get(party)
    accuracy = result.summary["accuracy"]["per_party"].get(party)
    told = {
        "comity": 1, "party": party, "algorithm": how.algorithm, "set": how.set, "cut": how.cut,
        "model": (own and own.model) or how.model, "classes": federation.classes, "shape": federation.shape,
        "class_names": [names[labels.index(k)] for k in range(len(names))] if labels else names,
        "preprocess": asdict(federation.preprocess.for_party(party)),
        "dataset": federation.name, "rounds": result.summary["rounds"],
        "seed": how.seed, "train_samples": len(federation.parties[party].train), "test_accuracy": accuracy,
        "judged_after_round": result.summary["accuracy"].get("as_of", {}).get(party, result.summary["rounds"]),
    }  # fmt: skip
    weights = encode(State(deployed.theta, mine))
    told["weights"] = Checksum.of(weights)
    text = json.dumps(with_crc(told), indent=2) + "\n"
    out.mkdir(parents=True, exist_ok=True)
    mark(out, text, code_in(told["algorithm"], [told["model"]]))
    (out / "weights.safetensors").write_bytes(weights)
    write_atomically(out / "model.json", text)
    write_atomically(out / "predict.py", PREDICT)
    write_atomically(out / "card.md", _card(told))


def load(folder: Path, *, trust: bool = False) -> Exported:
    """A model that `export` wrote; `trust` lets the files run that somebody else's names."""
    try:
        text = (folder / "model.json").read_text(encoding="utf-8")
        told = without_crc(json.loads(text))
        check(folder, text, code_in(told["algorithm"], [told["model"]]), trust)
        weights = (folder / "weights.safetensors").read_bytes()
        if "weights" in told and Checksum(*told["weights"]) != Checksum.of(weights):  # earlier versions had no checksum
            raise ValueError("the weights are others")
        algorithm = algorithms.compose(told["algorithm"], told["set"])  # first: what it keeps is known once it is there
        state = decode(weights)
        shape = tuple(told["shape"])
        classes = int(told["classes"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as why:
        raise ComityError(f"{folder} holds no exported model, or a damaged one.") from why
    network = models.build(told["model"], shape, classes)
    task = Task(network, classes, told["cut"] or network.cut)
    nothing = Samples(torch.zeros(1, *shape), torch.zeros(1, dtype=torch.int64))
    party = Party(0, told["party"], task, Training(), PartyData(nothing, nothing, nothing))
    task = algorithm.party_for(party, state.mine).task
    return Exported(Deployed(task, state.theta), Preprocess.of(told["preprocess"]), tuple(told["class_names"]))


def _card(told: dict[str, Any]) -> str:
    accuracy = "not judged" if told["test_accuracy"] is None else f"{told['test_accuracy']:.1%} on its own test samples"
    if told["test_accuracy"] is not None and told["judged_after_round"] != told["rounds"]:
        accuracy += f", but after round {told['judged_after_round']}: the party was not heard at the end"
    return f"""# The model of {told["party"]}

- Method: {told["algorithm"]}, {told["rounds"]} rounds, seed {told["seed"]}, with the network {told["model"]}.
- Data: {told["dataset"]}; this party trained on {told["train_samples"]} samples of shape {"x".join(map(str, told["shape"]))}.
- Accuracy: {accuracy}. On other data it may be anything: judge it on samples of your own before it is used.
- Classes: {", ".join(told["class_names"])}.
- Inputs: as the party has them; `model.json` says how they are scaled before the network sees them.
- `python predict.py SAMPLES.npz` prints a class and a certainty for each sample; the certainty is a softmax, not a promise.
- The weights were learned from this party's data and, through {told["algorithm"]}, from others': treat them as such.
"""
