"""The best model that each party of a comparison trains alone: the yardstick of its gains.

Beside SOLO, which trains the comparison's network, each party trains plain models on its own table
(`plain_models`). Its own model is the best of them by cross-validation over its training samples.
Test samples have no part in the choice, so that gains over it are paired differences of two fixed
models, as gains over SOLO are.

All of these are written as runs: `plain-linear`, `plain-boosting` and `own-model`.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from comity.base.key import Key
from comity.base.samples import Ints, PartyData
from comity.components.own_models import Choice, choose, held_out_answers
from comity.components.plain_models import fit
from comity.core.server import Note
from comity.data import Federation
from comity.data.protocols import training_folds
from comity.data.split import Share
from comity.errors import UsageError
from comity.metrics.evaluation import Answers, Evaluation, evaluate_logits
from comity.metrics.metrics import TWO
from comity.metrics.out_of_fold import join_answers
from comity.models import CustomModel
from comity.names import OWN_MODEL, PLAIN
from comity.runs import config
from comity.runs.build import SimulatedRun, prepare
from comity.runs.config import is_calibrated
from comity.runs.environment import environment
from comity.runs.evaluation import figures, further_figures
from comity.runs.folder import OUTCOMES, RunFolder
from comity.runs.run import can_continue, network_digests, prepared_process, start
from comity.runs.server_run import Quiet
from comity.runs.summary import summarise
from comity.runs.tables import METRICS as METRICS_TABLE
from comity.runs.tables import TIMING
from comity.runs.trust import code_of, mark
from comity.studies.parallel import finished_summary

AUTO = "auto"
MOST_NAMED = 12
"""The most parties whose own models are listed one by one."""
NONE = "none"
UNCALIBRATED = "calibrate has no effect on models that scikit-learn trains."


def parse_plain(text: str) -> tuple[str, ...] | None:
    """Return the names of the plain models that `--plain` chooses; None for `auto`.

    Examples:
        >>> parse_plain("linear,boosting")
        ('plain-linear', 'plain-boosting')
        >>> parse_plain("none")
        ()
    """
    words = [word.strip() for word in text.split(",")]
    if words == [AUTO]:
        return None
    if words == [NONE]:
        return ()
    if wrong := [word for word in words if word not in PLAIN]:
        raise UsageError(
            f"plain must be {AUTO}, {NONE}, or some of {', '.join(PLAIN)} as in"
            f" {','.join(PLAIN)}, not {wrong[0]!r}."
        )
    return tuple(PLAIN[word] for word in dict.fromkeys(words))


def plain_models_for(text: str, federation: Federation) -> tuple[str, ...]:
    """Return the names of the plain models of a comparison. With `auto`, these are all on data with
    named columns, and none on others.

    Raises UsageError if they were chosen for data that are no table.
    """
    kinds = parse_plain(text)
    if kinds is None:
        is_table = federation.schema is not None and len(federation.shape) == 1
        return tuple(PLAIN.values()) if is_table else ()
    if kinds and len(federation.shape) != 1:
        raise UsageError(
            "Plain models are for tables: a sample of these data has shape"
            f" {federation.shape}. Leave out --plain."
        )
    return kinds


def run_own_models(
    job: SimulatedRun,
    kinds: Sequence[str],
    folders: Mapping[str, Path],
    model: CustomModel | None = None,
) -> dict[str, dict[str, Any]]:
    """Train plain models at each party, choose each party's own model, and return the summaries.

    Finished runs are used as they are.

    Args:
        job: The run of SOLO, which is finished.
        kinds: The names of the plain models.
        folders: The folders of the runs of SOLO and of `kinds`, and that of the own models.
        model: A custom network of SOLO.
    """
    own = [*kinds, OWN_MODEL]
    runs = {name: _OwnModelRun.of(job, name) for name in own}
    summaries = {name: _finished(runs[name], folders[name]) for name in own}
    if any(summary is None for summary in summaries.values()):
        data = {name: job.federation.parties[name] for name in job.info.names}
        key = Key.root(job.experiment.seed).fold("own-models")
        folds = {name: training_folds(data[name], key.fold(name)) for name in data}
        predictions: dict[str, dict[str, Answers]] = {}
        for kind in kinds:
            began = time.perf_counter()
            evaluations, predictions[kind] = _train(kind, data, folds, job)
            if summaries[kind] is None:
                seconds = time.perf_counter() - began
                rows = _rows(evaluations, job)
                answers = {name: _answers(e) for name, e in evaluations.items()}
                summaries[kind] = _write(runs[kind], folders[kind], rows, answers, seconds)
        begin = time.perf_counter()
        solo = job.experiment.algorithm
        predictions[solo] = _predict_alone(job, data, folds, model)
        choices = {
            name: choose(
                {kind: predictions[kind][name] for kind in (*kinds, solo)}, folds[name], job.metric
            )
            for name in data
        }
        rows, answers = _of_chosen(choices, folders, job.experiment.rounds)
        summaries[OWN_MODEL] = _write(
            runs[OWN_MODEL], folders[OWN_MODEL], rows, answers, time.perf_counter() - begin, choices
        )
    return {name: summary for name, summary in summaries.items() if summary is not None}


@dataclass(frozen=True, kw_only=True)
class _OwnModelRun(SimulatedRun):
    """A run in which nothing is exchanged, and scikit-learn trains."""

    @staticmethod
    def of(solo: SimulatedRun, name: str) -> _OwnModelRun:
        """The run of own models with the data and settings of SOLO."""
        parts = {f.name: getattr(solo, f.name) for f in fields(SimulatedRun)}
        return _OwnModelRun(**parts | {"experiment": solo.experiment.but(algorithm=name)})

    def method_warnings(self) -> list[str]:
        return [UNCALIBRATED] if is_calibrated(self.experiment) else []


def _finished(job: SimulatedRun, folder: Path) -> dict[str, Any] | None:
    """Return the summary in a folder; None if there is no finished run."""
    return finished_summary(job, folder) if can_continue(folder, job.experiment) else None


def _train(
    kind: str, data: Mapping[str, PartyData], folds: Mapping[str, Ints], job: SimulatedRun
) -> tuple[dict[str, Evaluation], dict[str, Answers]]:
    """Train a plain model at each party. Returns the evaluations, and the predictions of training
    samples by models of the other folds.
    """
    classes, metric = job.info.task.classes, job.metric.name
    evaluations, predictions = {}, {}
    for name, party in data.items():
        model = fit(kind, party.train, classes, folds[name])
        evaluations[name] = evaluate_logits(model.logits, classes, party, True, metric)
        predictions[name] = held_out_answers(party, model.out_of_fold, classes)
    return evaluations, predictions


def _answers(evaluation: Evaluation) -> Answers:
    assert evaluation.answers is not None  # of a final evaluation
    return evaluation.answers


def _rows(evaluations: Mapping[str, Evaluation], job: SimulatedRun) -> list[Note]:
    """Return the rows of metrics.csv, after the last round."""
    t, metric = job.experiment.rounds, job.metric.name
    rows = []
    for name, evaluation in evaluations.items():
        for split, what, value in figures(evaluation, job.info.task.classes, metric):
            rows.append(Note(t, name, split, what, value))
        for what, value in further_figures(evaluation, metric):
            rows.append(Note(t, name, "test", what, value))
    return rows


def _predict_alone(
    job: SimulatedRun,
    data: Mapping[str, PartyData],
    folds: Mapping[str, Ints],
    model: CustomModel | None,
) -> dict[str, Answers]:
    """Return SOLO's predictions of each party's training samples, each by a model that was trained
    on the other folds.

    All of these models are trained in one run, in which every fold of a party is a party.
    """
    parties: dict[str, PartyData] = {}
    owners: dict[str, str] = {}
    for name, party in data.items():
        for fold in range(int(folds[name].max()) + 1):
            held_out = folds[name] == fold
            owners[alias := f"{fold}.{name}"] = name
            parties[alias] = replace(
                party,
                train=party.train.take(
                    np.flatnonzero(~held_out if folds[name].any() else held_out)
                ),
                test=party.train.take(np.flatnonzero(held_out)),
                patients=None,
                held_out_patients=None,
            )
    shares = {alias: Share((), (), ()) for alias in parties}
    federation = replace(
        job.federation, parties=parties, split=replace(job.federation.split, parties=shares)
    )
    own_settings = job.experiment.party
    engine = {"engine": "auto", "workers": None} if job.experiment.engine == "ray" else {}
    experiment = job.experiment.but(
        **engine,
        parties=None,
        without=None,
        absent=None,
        newcomers=0,
        min_replies=1,
        calibrate="none",
        eval_every=job.experiment.rounds if not job.experiment.patience else 1,
        party={
            alias: own_settings[owner] for alias, owner in owners.items() if owner in own_settings
        },
    )
    with tempfile.TemporaryDirectory(prefix="comity-") as folder:
        start(prepare(experiment, federation, model), Path(folder) / "run", Quiet())
        answers = RunFolder(Path(folder) / "run").read_answers()
    return {
        name: join_answers(
            [answers[a] for a, owner in owners.items() if owner == name],
            [np.argsort(folds[name], kind="stable")],
        )
        for name in data
    }


def _of_chosen(
    choices: Mapping[str, Choice], folders: Mapping[str, Path], rounds: int
) -> tuple[list[Note], dict[str, Answers]]:
    """Return the figures and predictions of each party's chosen model, from the runs of all."""
    rows: list[Note] = []
    answers: dict[str, Answers] = {}
    for name, choice in choices.items():
        run = RunFolder(folders[choice.model])
        of_party = [row for row in run.read_metrics() if row.party == name]
        of_party = [row for row in of_party if row.split in ("validation", "test")]
        last = max((row.round for row in of_party), default=0)
        rows += [row._replace(round=rounds) for row in of_party if row.round == last]
        answers |= {party: a for party, a in run.read_answers().items() if party == name}
    return rows, answers


def _write(
    job: SimulatedRun,
    path: Path,
    rows: Sequence[Note],
    answers: Mapping[str, Answers],
    seconds: float,
    choices: Mapping[str, Choice] | None = None,
) -> dict[str, Any]:
    """Write a run of own models, and return its summary. What an interrupted call left is written
    anew.
    """
    path.mkdir(parents=True, exist_ok=True)
    folder = RunFolder(path)
    with prepared_process(folder):
        settings, split = config.write(job.experiment), job.federation.split.to_json()
        mark(path, settings, code_of(job.experiment))
        entries = environment(settings, job.federation.fingerprint(), split=split)
        folder.begin(settings, entries | network_digests(job), split=split)
        tables = folder.tables()
        tables.create()
        tables.add(METRICS_TABLE, rows)
        tables.add(TIMING, [(job.experiment.rounds, f"{seconds:.4f}", "0.0000", "0.0000", 0)])
        folder.write_outcomes(answers)
        tables.note(OUTCOMES)
        course: dict[str, Any] = {
            "rounds": job.experiment.rounds,
            "steps": 0,
            "server_steps": 0,
            "withheld": [],
            "discarded": [],
            "privacy": job.privacy.account().summary(()),
        }
        missed = {name: labels for name, a in answers.items() if (labels := a.never_predicted())}
        if missed and job.info.task.classes > TWO:
            course["never_predicted"] = missed
        if choices is not None:
            course["own_models"] = {
                name: {"model": choice.model, "scores": dict(choice.scores)}
                for name, choice in choices.items()
            }
        summary = summarise(
            job, list(rows), (), Counter(), course, {"train": seconds, "total": seconds}, ()
        )
        folder.write_summary(summary, tables.files)
        return summary


def describe_choices(own_models: Mapping[str, Mapping[str, int]]) -> str:
    """Return a sentence on which model parties have chosen as their own.

    Examples:
        >>> describe_choices({"a": {"plain-linear": 5}, "b": {"solo": 3, "plain-linear": 2}})
        'Own models: plain-linear of a; solo (3 runs), plain-linear (2) of b.'
    """
    if len(own_models) > MOST_NAMED:
        total = sum((Counter(choices) for choices in own_models.values()), Counter[str]())
        return f"Own models of all parties: {_describe_counts(dict(total.most_common()))}."
    parts = [f"{_describe_counts(choices)} of {name}" for name, choices in own_models.items()]
    return f"Own models: {'; '.join(parts)}."


def _describe_counts(choices: Mapping[str, int]) -> str:
    (first, count), *others = choices.items()
    if not others:
        return first
    return ", ".join([f"{first} ({count} runs)", *(f"{name} ({n})" for name, n in others)])


def count_choices(summaries: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """Return how many runs of each party have chosen which model, by party."""
    counts: dict[str, Counter[str]] = {}
    for summary in summaries:
        for party, choice in summary.get("own_models", {}).items():
            counts.setdefault(party, Counter())[choice["model"]] += 1
    return {party: dict(counter.most_common()) for party, counter in counts.items()}
