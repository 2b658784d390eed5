"""A party's model to take along: weights, what was done to its inputs, a script that predicts, and
a card.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from comity import algorithms, models
from comity.base.finite import first_not_finite
from comity.base.record import record
from comity.base.samples import PartyData, Samples
from comity.checksums import Checksum, with_crc, without_crc
from comity.core.party import Party
from comity.data import Federation, preparation
from comity.data.federation import Preprocess
from comity.data.inputs import Inputs
from comity.data.preparation import Schema, Unusable
from comity.errors import ComityError, UsageError
from comity.measure.summary import blocks
from comity.metrics.metrics import ACCURACY, METRICS
from comity.models.low_rank import LowRank, without_factors
from comity.names import display_name
from comity.privacy.account import describe_party_guarantee
from comity.runs.checkpoint import write_atomically
from comity.runs.result import Deployed, Result
from comity.runs.trust import check, code_in, mark
from comity.studies import predict
from comity.training.settings import Training
from comity.training.task import LearningTask
from comity.wire.codec import decode, encode

WHAT_PREDICTS = (Path(predict.__file__), Path(preparation.__file__))
"""The scripts that lie beside every exported model."""


CARD = "card.md"
"""The file of an exported model that is written last."""


@record
class State:
    """What an exported model consists of: the deployed parameters, and the method's own state,
    which may belong to its task.
    """

    theta: Any
    mine: Any


class Alone(nn.Module):
    """A party's network by itself, for torch's own exporters: prepared samples in, scores out."""

    def __init__(self, deployed: Deployed) -> None:
        super().__init__()
        self._task = deployed.task
        self._names = list(deployed.theta)
        for k, name in enumerate(self._names):
            self.register_buffer(f"weight_{k}", deployed.theta[name])

    def forward(self, x: Tensor) -> Tensor:
        """Scores for each class."""
        return self._task.logits(
            {name: getattr(self, f"weight_{k}") for k, name in enumerate(self._names)}, x
        )


def export(result: Result, party: str, out: Path) -> list[str]:
    """Write one party's model to a folder of its own; what there is to say of what could not be
    written.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} is there already: choose another --out.")
    job = result.job
    how = job.experiment
    if how.model == "modules":
        raise UsageError(
            "A model of one's own modules is not exported: take result.model(party) in Python."
        )
    deployed = result.model(party)
    mine = result.state(party)
    if ruined := first_not_finite(State(deployed.theta, mine)):
        raise ComityError(
            f"The model of {party} is not exported: {ruined} is not finite, as its training has"
            " diverged."
        )
    federation = job.federation
    own = how.party.get(party)
    metric = METRICS[result.summary["metric"]]
    judged = {one.name: block["per_party"].get(party) for one, block in blocks(result.summary)}
    told = {
        "comity": 1, "party": party, "algorithm": how.algorithm, "set": how.set, "cut": how.cut,
        "model": (own and own.model) or how.model, "classes": federation.classes, "shape": federation.shape,
        "class_names": deployed.class_names,
        "preprocess": asdict(deployed.inputs.preprocess), "scaled_by": _scaled_by(federation, party),
        "dataset": federation.name, "rounds": result.summary["rounds"],
        "seed": how.seed, "train_samples": len(federation.parties[party].train),
        "test_accuracy": judged.get(ACCURACY.name), "metric": metric.name, "test_figures": judged,
        "test_samples": len(federation.parties[party].test), "label": federation.schema.label if federation.schema else "",
        "privacy": describe_party_guarantee(result.summary, party),
        "judged_after_round": result.summary["accuracy"].get("as_of", {}).get(party, result.summary["rounds"]),
    }  # fmt: skip
    network = deployed.task.network
    if isinstance(network, LowRank):  # taken along whole: nobody needs its base beside it
        deployed = replace(deployed, theta=network.merged(deployed.theta))
        told["model"] = without_factors(told["model"])
    weights = encode(State(deployed.theta, mine))
    told["weights"] = Checksum.of(weights)
    text = json.dumps(with_crc(told), indent=2) + "\n"
    out.mkdir(parents=True, exist_ok=True)
    mark(out, text, code_in(told["algorithm"], [told["model"]]))
    (out / "weights.safetensors").write_bytes(weights)
    write_atomically(out / "model.json", text)
    if federation.schema:
        federation.schema.write(out / "schema.json")
    for script in WHAT_PREDICTS:
        text = script.read_text(encoding="utf-8").replace(
            "from comity.data.preparation import", "from preparation import"
        )
        write_atomically(out / script.name, text)
    alone = load(out) if isinstance(network, LowRank) else deployed
    export_warnings = _write_networks(Alone(alone), torch.zeros(2, *federation.shape), out)
    write_atomically(out / CARD, _card(told, federation.schema, {p.name for p in out.iterdir()}))
    return export_warnings


def _write_networks(network: Alone, sample: Tensor, out: Path) -> list[str]:
    """The network for torch alone and as ONNX, as far as it can be."""
    try:
        with _quietly():
            program = torch.export.export(
                network, (sample,), dynamic_shapes=({0: torch.export.Dim("samples", min=1)},)
            )
            torch.export.save(program, out / "model.pt2")
    except Exception as why:  # whatever torch says of a network of somebody's own
        return [
            "There is no model.pt2, so that predict.py does not work: torch cannot export this"
            f" network ({_first_line(why)})."
        ]
    if find_spec("onnxscript") is None:
        return [
            "There is no model.onnx, which needs more packages: pip install comity[onnx], and"
            " export again."
        ]
    try:
        with _quietly():
            torch.onnx.export(
                program, (sample,), out / "model.onnx", dynamo=True, input_names=["samples"], output_names=["scores"],
                external_data=False, verbose=False,
            )  # fmt: skip
    except Exception as why:
        return [f"There is no model.onnx: torch cannot write this network so ({_first_line(why)})."]
    return []


def _first_line(why: Exception) -> str:
    return (str(why).strip() or type(why).__name__).splitlines()[0][:200]


@contextmanager
def _quietly() -> Iterator[None]:
    """Without what torch's exporters say of packages that nobody needs here."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _scaled_by(federation: Federation, party: str) -> str:
    """Whose data the constants come from that numbers are scaled by."""
    if party in federation.preprocess.own:
        return f"{party}'s own training samples"
    return "all parties' training samples" if federation.shared_columns else "fixed constants"


def load(folder: Path, *, trust: bool = False) -> Deployed:
    """A model that `export` wrote, to predict with in Python; `trust` lets the files run that
    somebody else's names.
    """
    try:
        text = (folder / "model.json").read_text(encoding="utf-8")
        told = without_crc(json.loads(text))
        check(folder, text, code_in(told["algorithm"], [told["model"]]), trust)
        weights = (folder / "weights.safetensors").read_bytes()
        if "weights" in told and Checksum(*told["weights"]) != Checksum.of(
            weights
        ):  # earlier versions had no checksum
            raise ValueError("the weights are others")
        algorithm = algorithms.compose(
            told["algorithm"], told["set"]
        )  # first: what it keeps is known once it is there
        state = decode(weights)
        shape = tuple(told["shape"])
        classes = int(told["classes"])
        how = told["preprocess"]
        fills = {party: tuple(values) for party, values in how["fills"].items()}
        mean, std, marked = (tuple(how[name]) for name in ("mean", "std", "marked"))
        middle, spread = how.get("label", (0.0, 1.0))  # earlier versions had classes only
        preprocess = Preprocess(how["divisor"], mean, std, marked, fills, label=(middle, spread))
        schema = Schema.read(folder / "schema.json") if (folder / "schema.json").exists() else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, Unusable) as why:
        raise ComityError(f"{folder} holds no exported model, or a damaged one.") from why
    network = models.build(told["model"], shape, max(1, classes))
    task = LearningTask(network, classes, told["cut"] or network.cut)
    nothing = Samples(torch.zeros(1, *shape), torch.zeros(1, dtype=torch.int64))
    party = Party(0, told["party"], task, Training(), PartyData(nothing, nothing, nothing))
    task = algorithm.party_for(party, state.mine).task
    return Deployed(
        task, state.theta, Inputs(shape, preprocess, schema), tuple(told["class_names"])
    )


def _card(told: dict[str, Any], schema: Schema | None, files: set[str]) -> str:
    figures = {
        METRICS[name]: figure for name, figure in told["test_figures"].items() if figure is not None
    }
    judged = (
        ", ".join(f"{one.title} {one.text(figure)}" for one, figure in figures.items())
        or "not judged"
    )
    if figures and told["judged_after_round"] != told["rounds"]:
        judged += (
            f", but after round {told['judged_after_round']}: the party was not heard at the end"
        )
    onnx = ""
    if "model.onnx" in files:
        scores = (
            "has one score a class (softmax makes them probabilities)"
            if told["classes"]
            else (
                "is the number, scaled: times the second, plus the first of `preprocess.label` in"
                " `model.json`"
            )
        )
        onnx = (
            "\n- `model.onnx`: the network alone, for other runtimes: its input `samples` is"
            f" prepared already, its output `scores` {scores}."
        )
    answers = f"one of {', '.join(told['class_names'])}" if told["classes"] else "a number"
    answers = f"{told['label']}: {answers}" if told["label"] else answers
    works = "`python predict.py NEW.csv`" if schema else "`python predict.py NEW.npz`"
    prints = "a class and its probability" if told["classes"] else "a number"
    promise = " The probability is a softmax, not a promise." if told["classes"] else ""
    return f"""# The model of {told["party"]}

- Method: {display_name(told["algorithm"])}, {told["rounds"]} rounds, seed {told["seed"]}, with the network {told["model"]}.
- Data: {told["dataset"]}; this party trained on {told["train_samples"]} samples of shape {"x".join(map(str, told["shape"]))}.
- On its own {told["test_samples"]} test samples: {judged}. On other data it may be anything: judge it on samples of your own
  before it is used.
- It predicts {answers}.
- Use: {works} takes samples as {told["party"]} has them and prints {prints} for each. It needs torch and numpy.{promise}{onnx}
- Numbers are scaled by {told["scaled_by"]} (`model.json`, `preprocess`).
- The weights were learned from this party's data and, through {display_name(told["algorithm"])}, from others': treat them as such.
- Privacy of what left the party for this model: {told["privacy"]}.
{_columns(schema) if schema else ""}"""


def _columns(schema: Schema) -> str:
    """The columns that the model takes, as a table."""
    lines = ["", "| column | kind | unit | may be missing |", "| --- | --- | --- | --- |"]
    for column in schema.columns:
        kind = f"one of {', '.join(column.words)}" if column.kind == "words" else column.kind
        lines.append(
            f"| {column.name} | {kind} | {column.unit} |"
            f" {'yes' if column.may_be_missing else 'no'} |"
        )
    return "\n".join(lines) + "\n"
