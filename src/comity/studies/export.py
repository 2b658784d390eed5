"""Export of a party's model: weights, preprocessing, a script that predicts, and a model card."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from comity import algorithms
from comity.base.finite import first_not_finite
from comity.base.record import record
from comity.base.samples import PartyData, Samples
from comity.checksums import Checksum, with_crc, without_crc
from comity.components.own_models import METHODS, Candidates, own_network
from comity.components.portable_models import build_portable
from comity.core.party import Party
from comity.data import Federation, preparation
from comity.data.federation import Preprocess
from comity.data.inputs import Inputs
from comity.data.preparation import Schema, Unusable
from comity.data.protocols import folds_of
from comity.errors import ComityError, UsageError
from comity.metrics.calibration import Calibration
from comity.metrics.metrics import ACCURACY, METRICS
from comity.models.exported import SETTINGS, WEIGHTS, no_model_in, read_weights
from comity.models.low_rank import LowRank, without_factors
from comity.models.pretrained import Pretrained
from comity.names import OWN_MODELS, PLAIN, SOLO, display_name
from comity.privacy.account import describe_party_guarantee
from comity.runs.caveats import RECALL
from comity.runs.folder import CONFIG
from comity.runs.result import Deployed, Result
from comity.runs.summary import blocks
from comity.runs.trust import check, code_in, mark
from comity.safe_files import make_folder, write_atomically
from comity.spec import parse
from comity.studies import predict
from comity.studies.export_plain import plain_export
from comity.training.settings import Training
from comity.training.task import LearningTask
from comity.wire.codec import decode, encode

WHAT_PREDICTS = (Path(predict.__file__), Path(preparation.__file__))
"""The scripts that are copied into every exported model."""
CARD = "card.md"
"""The model card, which is written last."""


@record
class State:
    """The content of the weights file: the deployed parameters and the party's state of the method.

    The state may be a part of the method's task.
    """

    theta: Any
    mine: Any


class ExportedNetwork(nn.Module):
    """A party's network as a module, for torch's exporters: from prepared samples to scores."""

    def __init__(self, deployed: Deployed) -> None:
        super().__init__()
        self._task = deployed.task
        self._calibration = deployed.calibration
        self._names = list(deployed.theta)
        for k, name in enumerate(self._names):
            self.register_buffer(f"weight_{k}", deployed.theta[name])

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores of each class, calibrated."""
        theta = {name: getattr(self, f"weight_{k}") for k, name in enumerate(self._names)}
        return self._calibration.apply(self._task.logits(theta, x))


def export(result: Result, party: str, out: Path) -> list[str]:
    """Write one party's model to the folder `out`, which must be empty or new.

    Returns warnings about files that could not be written. Raises UsageError if the folder is in
    use or the model cannot be exported, and ComityError if the model has diverged.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} exists already: choose another --out.")
    job = result.job
    deployed, state, more = _model_of(result, party)
    if name := first_not_finite(State(deployed.theta, state)):
        raise ComityError(
            f"The model of {party} is not exported: {name} is not finite, as its training has"
            " diverged."
        )
    federation = job.federation
    settings = _model_settings(result, party, deployed) | more
    network = deployed.task.network
    if isinstance(network, LowRank):  # the exported model does not need the base
        deployed = replace(deployed, theta=network.merged(deployed.theta))
        settings["model"] = without_factors(settings["model"])
    if isinstance(network, Pretrained):  # the exported model has its frozen weights with it
        deployed = replace(deployed, theta=network.whole(deployed.theta))
    weights = encode(State(deployed.theta, state))
    settings["weights"] = Checksum.of(weights)
    text = json.dumps(with_crc(settings), indent=2) + "\n"
    if not out.exists():
        out.parent.mkdir(parents=True, exist_ok=True)
        make_folder(out)
    mark(out, text, code_in(settings["algorithm"], [settings["model"]]))
    write_atomically(out / WEIGHTS, weights)
    write_atomically(out / SETTINGS, text)
    schema = federation.schema_at(party)
    if schema:
        write_atomically(out / "schema.json", schema.to_text())
    for script in WHAT_PREDICTS:
        text = script.read_text(encoding="utf-8").replace(
            "from comity.data.preparation import", "from preparation import"
        )
        write_atomically(out / script.name, text)
    merged = load(out) if isinstance(network, LowRank) else deployed
    export_warnings = _write_networks(
        ExportedNetwork(merged), torch.zeros(2, *federation.shape), out
    )
    card = _card(settings, schema, {p.name for p in out.iterdir()})
    write_atomically(out / CARD, card)
    return [
        *_one_class_warnings(result.summary, party),
        *([] if "plain" in more else _fold_warnings(result, party)),
        *export_warnings,
    ]


def _model_of(result: Result, party: str) -> tuple[Deployed, Any, dict[str, Any]]:
    """Return a party's model, its state of the method, and further content of model.json."""
    method = result.job.experiment.algorithm
    if method in PLAIN.values() and not isinstance(result.job.algorithm, METHODS[method]):
        plain = plain_export(result, party)
        return plain.deployed, {}, plain.settings
    if result.job.experiment.model == "modules":
        raise UsageError(
            "A model given as modules cannot be exported: use result.model(party) in Python."
        )
    deployed, state = result.model(party), result.state(party)
    if method not in OWN_MODELS:
        return deployed, state, {}
    # The state has predictions of single training samples, which are no part of the model.
    choice = f" ({state.choice})" if isinstance(state, Candidates) else ""
    own = {"plain": f"{method}{choice}", "set": {}, "privacy": "nothing left it"}
    if name := own_network(state):
        own |= {"model": name, "cut": deployed.task.cut}
    return deployed, {}, own


def _one_class_warnings(summary: dict[str, Any], party: str) -> list[str]:
    """Return a warning if the party's model predicted the same class for all its test samples."""
    figures = {name: (summary.get(name) or {}).get("per_party", {}).get(party) for name in RECALL}
    return [
        f"{party}'s model predicted the same class for all its test samples: {name} is 0%. Choose"
        " a threshold with --calibrate threshold, or do not use it."
        for name, figure in figures.items()
        if figure == 0
    ]


def _fold_warnings(result: Result, party: str) -> list[str]:
    """Return a warning if the model is that of one fold of a cross-validation."""
    folds = folds_of(result.job.experiment.test)
    if folds == 1:
        return []
    return [
        f"{party}'s model is of one run of a {folds}-fold cross-validation and has not seen a fold"
        f" of its samples: train a final model with 'comity run {result.folder / CONFIG} --test"
        ' "own(0.1)" --out final\', and export that one.'
    ]


def _model_settings(result: Result, party: str, deployed: Deployed) -> dict[str, Any]:
    """Return the content of model.json, without the checksum of the weights."""
    how = result.job.experiment
    federation = result.job.federation
    party_settings = how.party.get(party)
    data = federation.parties[party]
    summary = result.summary
    figures = {metric.name: block["per_party"].get(party) for metric, block in blocks(summary)}
    return {
        "comity": 1,
        "party": party,
        "algorithm": how.algorithm,
        "set": how.set,
        "cut": how.cut,
        "model": (party_settings and party_settings.model) or how.model,
        "classes": federation.classes,
        "shape": federation.shape,
        "class_names": deployed.class_names,
        "preprocess": asdict(deployed.inputs.preprocess),
        "scaled_by": _scaled_by(federation, party),
        "calibration": asdict(deployed.calibration),
        "dataset": federation.name,
        "rounds": summary["rounds"],
        "seed": how.seed,
        "train_samples": len(data.train),
        "test_accuracy": figures.get(ACCURACY.name),
        "metric": METRICS[summary["metric"]].name,
        "test_figures": figures,
        "test_samples": len(data.test),
        "label": federation.schema.label if federation.schema else "",
        "privacy": describe_party_guarantee(summary, party),
        "judged_after_round": summary["accuracy"].get("as_of", {}).get(party, summary["rounds"]),
    }


def _write_networks(network: ExportedNetwork, sample: Tensor, out: Path) -> list[str]:
    """Write the network for torch alone and as ONNX; return warnings where that fails."""
    try:
        with _quietly():
            program = torch.export.export(
                network, (sample,), dynamic_shapes=({0: torch.export.Dim("samples", min=1)},)
            )
            with _written_to(out / "model.pt2") as file:
                torch.export.save(program, file)
    except Exception as why:  # a custom network may fail in any way
        return [
            "There is no model.pt2, so predict.py does not work: torch cannot export this"
            f" network ({_first_line(why)})."
        ]
    if find_spec("onnxscript") is None:
        return [
            "There is no model.onnx, which needs more packages: pip install 'comity[onnx]',"
            " and export again."
        ]
    try:
        with _quietly(), _written_to(out / "model.onnx") as file:
            torch.onnx.export(
                program,
                (sample,),
                file,
                dynamo=True,
                input_names=["samples"],
                output_names=["scores"],
                external_data=False,
                verbose=False,
            )
    except Exception as why:
        return [f"There is no model.onnx: torch cannot export this network ({_first_line(why)})."]
    return []


@contextmanager
def _written_to(path: Path) -> Iterator[Path]:
    """A file in a temporary folder, which another library writes by its name. Its content then
    becomes that of `path`, in the way in which all files are written.
    """
    with TemporaryDirectory(prefix="comity-export-") as folder:
        file = Path(folder) / path.name
        yield file
        write_atomically(path, file.read_bytes())


def _first_line(why: Exception) -> str:
    return (str(why).strip() or type(why).__name__).splitlines()[0][:200]


@contextmanager
def _quietly() -> Iterator[None]:
    """Suppress the warnings of torch's exporters about optional packages."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _scaled_by(federation: Federation, party: str) -> str:
    """Return whose data determine the scale of the inputs."""
    if party in federation.preprocess.own:
        return f"{party}'s own training samples"
    return "all parties' training samples" if federation.shared_columns else "fixed constants"


def load(folder: Path, *, trust: bool = False) -> Deployed:
    """Load a model that `export` wrote, to predict with it in Python.

    `trust` allows to run the Python files that somebody else's model names. Raises ComityError if
    the folder has no exported model, or a damaged one.
    """
    try:
        text = (folder / SETTINGS).read_text(encoding="utf-8")
        settings = without_crc(json.loads(text))
        check(folder, text, code_in(settings["algorithm"], [settings["model"]]), trust)
        weights = read_weights(folder, settings)
        # The algorithm is imported first: it defines the records of its state.
        # A model of a party's own is one of SOLO's, whatever has trained it.
        method = SOLO if settings["algorithm"] in OWN_MODELS else settings["algorithm"]
        algorithm = algorithms.compose(method, settings["set"])
        state = decode(weights)
        shape = tuple(settings["shape"])
        classes = int(settings["classes"])
        how = settings["preprocess"]
        fills = {party: tuple(values) for party, values in how["fills"].items()}
        mean, std, indicator_columns = (tuple(how[name]) for name in ("mean", "std", "marked"))
        middle, spread = how.get("label", (0.0, 1.0))  # earlier versions had classes only
        preprocess = Preprocess(
            how["divisor"], mean, std, indicator_columns, fills, label=(middle, spread)
        )
        schema = Schema.read(folder / "schema.json") if (folder / "schema.json").exists() else None
        # Earlier versions had no calibration.
        calibration = Calibration(**settings.get("calibration", {}))
    except UsageError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, Unusable) as why:
        raise no_model_in(folder) from why
    network = build_portable(settings["model"], shape, classes)
    task = LearningTask(network, classes, settings["cut"] or network.cut)
    dummy = Samples(torch.zeros(1, *shape), torch.zeros(1, dtype=torch.int64))
    party = Party(0, settings["party"], task, Training(), PartyData(dummy, dummy, dummy))
    task = algorithm.party_for(party, state.mine).task
    return Deployed(
        task,
        state.theta,
        Inputs(shape, preprocess, schema),
        tuple(settings["class_names"]),
        calibration,
    )


def _card(settings: dict[str, Any], schema: Schema | None, files: set[str]) -> str:
    figures = {
        METRICS[name]: figure
        for name, figure in settings["test_figures"].items()
        if figure is not None
    }
    performance = (
        ", ".join(f"{metric.title} {metric.text(figure)}" for metric, figure in figures.items())
        or "not judged"
    )
    if figures and settings["judged_after_round"] != settings["rounds"]:
        performance += (
            f", but after round {settings['judged_after_round']}: the party was not heard at the"
            " end"
        )
    onnx = []
    if "model.onnx" in files:
        scores = (
            "has one score a class (softmax makes them probabilities)"
            if settings["classes"]
            else (
                "is the number, scaled: times the second, plus the first of `preprocess.label` in"
                " `model.json`"
            )
        )
        onnx = [
            "`model.onnx`: the network alone, for other runtimes: its input `samples` is prepared"
            f" already, its output `scores` {scores}."
        ]
    answers = f"one of {', '.join(settings['class_names'])}" if settings["classes"] else "a number"
    answers = f"{settings['label']}: {answers}" if settings["label"] else answers
    command = "`python predict.py NEW.csv`" if schema else "`python predict.py NEW.npz`"
    prints = "a class and its probability" if settings["classes"] else "a number"
    promise = " The probability is a softmax, not a promise." if settings["classes"] else ""
    method = display_name(settings["algorithm"])
    shape = "x".join(map(str, settings["shape"]))
    own_test = f"On its own {settings['test_samples']} test samples"
    others = "" if "plain" in settings else f" and, through {method}, from others'"
    items = [
        _about_training(settings, method),
        f"Data: {settings['dataset']}; this party trained on {settings['train_samples']} samples of"
        f" shape {shape}.",
        f"{settings.get('tested') or own_test}: {performance}. On other data it may be anything:"
        " judge it on samples of your own before it is used.",
        f"It predicts {answers}.",
        f"Use: {command} takes samples as {settings['party']} has them and prints {prints} for"
        f" each. It needs torch and numpy.{promise}",
        *onnx,
        *_about_calibration(settings),
        f"Numbers are scaled by {settings['scaled_by']} (`model.json`, `preprocess`).",
        f"The weights were learned from this party's data{others}: treat them as such.",
        f"Privacy of what left the party for this model: {settings['privacy']}.",
    ]
    text = f"# The model of {settings['party']}\n\n" + "".join(f"- {item}\n" for item in items)
    return text + (_columns(schema) if schema else "")


def _about_training(settings: dict[str, Any], method: str) -> str:
    """Return a sentence about the method, or about the plain model."""
    if "plain" in settings:
        return (
            f"Model: {settings['plain']}, of this party alone, seed {settings['seed']}. Its weights"
            f" are those of the network {settings['model']}: it predicts without scikit-learn."
        )
    return (
        f"Method: {method}, {settings['rounds']} rounds, seed {settings['seed']}, with the network"
        f" {settings['model']}."
    )


def _about_calibration(settings: dict[str, Any]) -> list[str]:
    """Return a sentence about the calibration, if there is one."""
    calibration = Calibration(**settings["calibration"])
    if not calibration.samples:
        return []
    kind = "training" if calibration.samples == "train" else calibration.samples
    text = (
        f"Calibrated by {calibration.how} on this party's {kind} samples: scores are multiplied by"
        f" {calibration.scale:.6g}"
    )
    if calibration.shift:
        text += f", and {calibration.shift:.6g} is added to that of {settings['class_names'][1]}"
    text += ". All files of this model include it."
    if parse(calibration.how).name == "threshold":
        text += " It moves probabilities, too: 50% is where the prediction changes."
    return [text]


def _columns(schema: Schema) -> str:
    """Return a table of the columns that the model takes."""
    lines = ["", "| column | kind | unit | may be missing |", "| --- | --- | --- | --- |"]
    for column in schema.columns:
        kind = f"one of {', '.join(column.words)}" if column.kind == "words" else column.kind
        lines.append(
            f"| {column.name} | {kind} | {column.unit} |"
            f" {'yes' if column.may_be_missing else 'no'} |"
        )
    return "\n".join(lines) + "\n"
