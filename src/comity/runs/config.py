"""Experiments: the one list of settings for the command line, TOML files and the Python API."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from comity.errors import UsageError, quote, unknown
from comity.metrics.calibration import NONE, parse_calibrate
from comity.metrics.custom_metrics import is_custom
from comity.metrics.metrics import ACCURACY, ELIGIBLE
from comity.models.named_files import located
from comity.models.referenced_weights import WeightsReference
from comity.plugins import is_code
from comity.privacy.budget import Budget
from comity.spec import MAX_INT, call, parse, split
from comity.training.settings import Precision, Training

HERE = Path()
"""The working directory, which the paths of settings are relative to unless a file names them."""


def _absolute_names(names: Any, *, folder: Path = HERE) -> Any:
    """Names, with the paths of users' files made absolute, so that a run can be resumed from any
    folder.
    """
    if not isinstance(names, str) or ".py" not in names:
        return names
    specs = [parse(part) for part in split(names, "+")]
    return "+".join(
        str(replace(s, name=_absolute(s.name, folder) if is_code(s.name) else s.name))
        for s in specs
    )


def _absolute(path: str | Path, folder: Path) -> str:
    return str((folder / path).resolve())


MethodName = Annotated[str, BeforeValidator(_absolute_names)]


def _absolute_network(model: Any, *, folder: Path = HERE) -> Any:
    """A network, with its file and the files in its options as absolute paths."""
    absolute = _absolute_names(model, folder=folder)
    return located(absolute, folder) if isinstance(absolute, str) else absolute


Network = Annotated[str, BeforeValidator(_absolute_network)]


def _absolute_dataset(data: Any, *, folder: Path = HERE) -> Any:
    """The name of a dataset, or the absolute path of a user's file or folder."""
    with suppress(OSError):  # an invalid file name is not a path
        if isinstance(data, str) and (folder / data / "dataset.json").is_file():
            return _absolute(data, folder)
    return _absolute_names(data, folder=folder)


def _absolute_file(file: Any, *, folder: Path = HERE) -> Any:
    """The absolute path of a file, so that a run can be resumed from any working directory. A
    reference to weights by their digest stays as it is.
    """
    if isinstance(file, str) and WeightsReference.read(file):
        return file
    return _absolute(file, folder) if isinstance(file, str | Path) else file


def _absolute_plan(plan: Any, *, folder: Path = HERE) -> Any:
    """A plan of absences, with the absolute path of a table."""
    return _absolute(plan, folder) if isinstance(plan, str) and plan.endswith(".csv") else plan


def _metric_name(name: Any, *, folder: Path = HERE) -> Any:
    """A metric as metrics.csv spells it (`balanced_accuracy`), or the absolute path of a user's
    file.
    """
    if not isinstance(name, str) or is_custom(name):
        return _absolute_names(name, folder=folder)
    return name.replace("-", "_")


def _absolute_partition(partition: Any, *, folder: Path = HERE) -> Any:
    """A partition and its further steps, with users' files as absolute paths."""
    if not isinstance(partition, str) or ".py" not in partition:
        return partition
    return "|".join(_absolute_names(step, folder=folder) for step in split(partition, "|"))


def _absolute_partition_or_split(partition: Any, *, folder: Path) -> Any:
    """A partition, or the absolute path of a saved split."""
    if isinstance(partition, str) and partition.endswith(".json"):
        return _absolute(partition, folder)
    return _absolute_partition(partition, folder=folder)


def relative_to(folder: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a file in a folder, in which the paths of other files are relative to that
    folder: the same settings with absolute paths.
    """
    located_settings = dict(settings)
    for name, absolute in _WITH_PATHS.items():
        if name in settings:
            located_settings[name] = absolute(settings[name], folder=folder)
    parties = settings.get("party")
    if isinstance(parties, Mapping):
        located_settings["party"] = {
            name: relative_to(folder, own) if isinstance(own, Mapping) else own
            for name, own in parties.items()
        }
    return located_settings


_WITH_PATHS: dict[str, Callable[..., Any]] = {
    "algorithm": _absolute_names,
    "data": _absolute_dataset,
    "partition": _absolute_partition_or_split,
    "model": _absolute_network,
    "weights": _absolute_file,
    "metric": _metric_name,
    "absent": _absolute_plan,
}
"""The settings that may name files, and what makes their paths absolute."""


def _split_names(names: Any) -> Any:
    """`p1,p2` as a tuple of names."""
    return tuple(part.strip() for part in names.split(",")) if isinstance(names, str) else names


def _unique_sorted(names: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Each name once, sorted, so that equal experiments compare equal; None if there are none."""
    return tuple(sorted(set(names or ()))) or None


def _budget(text: str | None) -> str | None:
    """A privacy budget in its normal form."""
    return None if text is None else str(Budget.read(text))


class PartySettings(BaseModel):
    """The settings of a single party that differ from the experiment's."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: Network | None = None
    lr: float | None = Field(None, gt=0, allow_inf_nan=False)
    batch: int | None = Field(None, ge=1)
    epochs: int | None = Field(None, ge=1)
    steps: int | None = Field(None, ge=1)
    peers: tuple[str, ...] | None = None


class Experiment(BaseModel):
    """Everything that a run depends on. Model, optimizer and budget belong to the experiment: one
    default for all methods.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    algorithm: MethodName = Field(
        "fedavg", description="method with optional wrappers, as in fedavg+dbe"
    )
    data: Annotated[str, BeforeValidator(_absolute_dataset)] = Field(
        "digits", description="dataset name, or path to your own data"
    )
    partition: Annotated[str, BeforeValidator(_absolute_partition)] = Field(
        "auto",
        description=(
            "how samples are split among parties: a partition, a saved split.json, or a"
            " ./file.py; auto: the natural parties of the dataset (persons, sites, sources),"
            " otherwise dirichlet(alpha=0.5)"
        ),
    )
    parties: int | None = Field(
        None, ge=1, description="number of parties; default: 10, or the number of natural parties"
    )
    model: Network = Field(
        "mlp2",
        description=(
            "network name, or a ./file.py; auto: on tables, a linear model or a small network,"
            " whichever predicts held-out training samples better"
        ),
    )
    weights: Annotated[str | None, BeforeValidator(_absolute_file)] = Field(
        None,
        description=(
            "file of initial weights, matched by name: safetensors, a state dict, or an exported"
            " model"
        ),
    )
    rounds: int = Field(20, ge=1, description="number of communication rounds")
    epochs: int = Field(1, ge=1, description="local epochs per round")
    steps: int | None = Field(None, ge=1, description="local steps per round, instead of epochs")
    batch: int = Field(10, ge=1, description="mini-batch size")
    optimizer: str = Field("sgd", description="sgd, sgd(momentum=0.9,decay=1e-5) or adam")
    lr: float = Field(0.05, gt=0, allow_inf_nan=False, description="learning rate")
    participation: float = Field(
        1.0, gt=0, le=1, description="fraction of parties that train in a round"
    )
    test: str = Field(
        "own(0.25)",
        description="test protocol: own(0.25), tail(0.25), folds(5), official, matched or common",
    )
    validation: float = Field(
        0.1,
        ge=0,
        lt=1,
        description="fraction of each party's training samples held out for validation",
    )
    eval_every: int = Field(
        1, ge=1, description="rounds between evaluations; the last round is always evaluated"
    )
    eval_share: float = Field(
        1.0,
        gt=0,
        le=1,
        description=(
            "fraction of parties evaluated per round (a new sample each time; all parties after the"
            " last round)"
        ),
    )
    patience: int | None = Field(
        None,
        ge=1,
        description=(
            "stop after this many rounds without improvement on validation data (on test data"
            " if validation is 0)"
        ),
    )
    metric: Annotated[str, BeforeValidator(_metric_name)] = Field(
        ACCURACY.name,
        description=(
            f"metric that rounds, settings and methods are chosen by: {', '.join(ELIGIBLE)}, or a"
            " ./file.py"
        ),
    )
    calibrate: str = Field(
        NONE,
        description=(
            "calibrate each party's final model on its own validation samples: none, threshold,"
            " threshold(specificity=0.9), temperature or platt"
        ),
    )
    augment: str = Field(
        "none",
        description=(
            "random augmentation of training images, as in flip|crop(pad=4)|rotate(degrees=10)"
        ),
    )
    bn: Literal["all", "params_only", "none"] = Field(
        "all",
        description=(
            "which BatchNorm values are shared: all, its weights but no running statistics"
            " (better where inputs differ, worse where labels do), or none"
        ),
    )
    init: Literal["common", "random", "own"] = Field(
        "common",
        description=(
            "initial weights: the model's own, or drawn if it has none, the same for all parties"
            " (common); drawn anew, the same for all (random); drawn for each party (own)"
        ),
    )
    cut: str | None = Field(
        None,
        description="stage whose output is the representation; default: chosen by the model",
    )
    precision: Precision = Field(
        "float32",
        description=(
            "precision of the forward and backward passes in training: float32, or bf16 (faster for"
            " convolutions on processors with bfloat16 instructions); weights, updates, averages"
            " and evaluation are float32"
        ),
    )
    opt_state: Literal["reset", "keep"] = Field(
        "reset", description="optimizer state of the parties between rounds"
    )
    last_batch: Literal["keep", "drop"] = Field(
        "keep", description="last batch of an epoch, if it is smaller than the others"
    )
    newcomers: int = Field(
        0,
        ge=0,
        description=(
            "number of parties (the last ones) that join only after training, and are then"
            " evaluated"
        ),
    )
    join_epochs: int = Field(10, ge=1, description="epochs of a newcomer's warm-up")
    without: Annotated[
        tuple[str, ...] | None, BeforeValidator(_split_names), AfterValidator(_unique_sorted)
    ] = Field(
        None,
        description=(
            "parties to leave out, as in p1,p2; the others keep their data and their random streams"
        ),
    )
    absent: Annotated[str | None, BeforeValidator(_absolute_plan)] = Field(
        None,
        description=(
            "simulated absences: a table such as absences.csv, or random(offline=0.1,lost=0.1)"
        ),
    )
    min_replies: int = Field(
        1,
        ge=1,
        description=(
            "minimum number of replies to a call (or all, if fewer parties are called);"
            " otherwise the round is discarded"
        ),
    )
    on_nonfinite: Literal["drop", "stop"] = Field(
        "drop", description="reply that contains NaN or infinity: drop the reply, or stop the run"
    )
    budget: Annotated[str | None, AfterValidator(_budget)] = Field(
        None,
        description=(
            "privacy budget of each party, as in epsilon=8,delta=1e-5; dp solves for its noise"
            " level"
        ),
    )
    seed: int = Field(0, ge=0, description="random seed")
    device: Literal["auto", "cpu", "cuda", "mps"] = Field(
        "auto",
        description="device of the tensors; auto: a GPU if there is one (GPUs are untested)",
    )
    engine: Literal["auto", "loop", "process", "stacked", "ray", "flare"] = Field(
        "auto",
        description=(
            "how parties are run: one after another (loop), in worker processes, batched"
            " (stacked), or on a Ray cluster; flare: at real sites, with --federation"
        ),
    )
    workers: int | None = Field(
        None, ge=1, description="number of worker processes; default: one per core"
    )
    gpus: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="GPUs, or a fraction of one, per Ray worker (untested)",
    )
    cache: bool = Field(
        True,
        strict=True,
        description=(
            "compute the representations of a frozen encoder once, if there is no augmentation;"
            " results differ by rounding"
        ),
    )
    partial_sums: bool = Field(
        False,
        strict=True,
        description=(
            "let each worker (process or ray) sum its parties' replies where the method only"
            " averages them: less traffic; results differ by rounding"
        ),
    )
    secure_aggregation: bool = Field(
        False,
        strict=True,
        description=(
            "with --federation: the server learns the mean of the replies and no single reply"
            " (experimental)"
        ),
    )
    secure_aggregation_range: float = Field(
        128.0,
        gt=0,
        allow_inf_nan=False,
        description=(
            "largest absolute value that secure aggregation can encode; larger ones are clipped"
        ),
    )
    set: dict[str, Any] = Field(default_factory=dict, description="options of the method")
    party: dict[str, PartySettings] = Field(
        default_factory=dict, description="settings of individual parties"
    )

    def training(self) -> Training:
        """The settings of local training."""
        common: dict[str, Any] = {
            name: getattr(self, name) for name in ("lr", "batch", "epochs", "steps")
        }
        common["keep"] = self.opt_state == "keep"
        common["precision"] = self.precision

        def sgd(momentum: float = 0.0, decay: float = 0.0) -> Training:
            return Training("sgd", momentum=momentum, decay=decay, **common)

        def adam(decay: float = 0.0) -> Training:
            return Training("adam", decay=decay, **common)

        kinds: dict[str, Callable[..., Training]] = {"sgd": sgd, "adam": adam}
        spec = parse(self.optimizer)
        if spec.name not in kinds:
            raise unknown("optimizer", spec.name, kinds)
        training = call(spec, kinds[spec.name])
        if not (0 <= training.momentum < 1 and 0 <= training.decay < float("inf")):
            raise UsageError(
                f"{self.optimizer} is out of range: momentum lies in [0, 1) and decay is not"
                " negative."
            )
        return training

    def but(self, **changes: Any) -> Experiment:
        """The same experiment with some settings changed, checked again."""
        return experiment(self.model_dump(exclude_unset=False) | changes)


MOST_SEED = 2**63
MOST_DOTS = 1000  # per key: the memory that tomllib needs is quadratic in their number
WHERE = {"engine", "workers", "device", "gpus", "cache", "partial_sums"}
"""The settings that say where a run is computed. They do not change its results, except for
rounding.
"""


def is_calibrated(experiment: Experiment) -> bool:
    """Whether the parties' final models are calibrated."""
    return experiment.calibrate != NONE


def experiment(settings: Mapping[str, Any]) -> Experiment:
    """A validated experiment. Raises UsageError with one sentence that says what is wrong."""
    for name, value in settings.items():
        if name not in Experiment.model_fields:
            raise unknown("setting called", str(name), Experiment.model_fields)
        if isinstance(value, bool) and Experiment.model_fields[name].annotation is not bool:
            raise UsageError(f"{name} cannot be {str(value).lower()}.")
        _check_plain(name, value)
    try:
        result = Experiment.model_validate(dict(settings) | {"set": _flat(settings.get("set", {}))})
    except ValidationError as why:
        raise UsageError(_sentence(why)) from why
    if result.metric not in ELIGIBLE and not is_custom(result.metric):
        raise unknown("metric", result.metric, ELIGIBLE)
    if result.steps is not None and "epochs" in settings and settings["epochs"] != 1:
        raise UsageError("Give either epochs or steps, not both.")
    if result.patience is not None and result.eval_share < 1:
        raise UsageError(
            "Patience compares rounds by what everybody says of them: give either patience or"
            " eval_share."
        )
    _check_workers(result)
    _check_secure_aggregation(result)
    for name, party in result.party.items():
        if party.steps is not None and party.epochs is not None:
            raise UsageError(f"Give {name} either epochs or steps, not both.")
    result.training()
    parse_calibrate(result.calibrate)
    return result


def _check_secure_aggregation(experiment: Experiment) -> None:
    """Refuse secure aggregation of some of the sites: sums of different sites could be subtracted
    from each other.
    """
    if experiment.secure_aggregation and experiment.participation < 1:
        raise UsageError(
            "secure_aggregation needs all sites in every round: participation must be 1, not"
            f" {experiment.participation:g}."
        )


def _check_workers(experiment: Experiment) -> None:
    """Refuse settings of workers without workers, settings that the engine does not support, and
    fractions of GPUs that Ray does not support.
    """
    if experiment.partial_sums and experiment.engine not in ("process", "ray"):
        raise UsageError("partial_sums are sums at workers, and need --engine process or ray.")
    if experiment.precision != "float32" and experiment.engine == "stacked":
        raise UsageError(
            f"precision={experiment.precision} is not supported on engine stacked, which trains"
            " many parties as one computation: use engine loop, process or ray, or"
            " precision=float32."
        )
    if experiment.gpus is None:
        return
    if experiment.engine != "ray":
        raise UsageError(
            "gpus is what each worker on Ray takes, and needs --engine ray: elsewhere --device cuda"
            " leads to a GPU."
        )
    if experiment.device not in ("auto", "cuda"):
        raise UsageError(
            f"Workers with gpus compute on cuda, not on {experiment.device}: give either gpus or"
            " device."
        )
    if experiment.gpus > 1 and experiment.gpus != int(experiment.gpus):
        raise UsageError(
            f"gpus must be a share of one, or a whole number, not {experiment.gpus:g}."
        )


def _check_plain(name: str, setting: Any) -> None:
    """Refuse integers beyond 64 bits, and text that cannot be written to a file."""
    if isinstance(setting, Mapping):
        for key, value in setting.items():
            _check_plain(name, key)
            _check_plain(f"{name}.{key}", value)
    elif isinstance(setting, list | tuple):
        for value in setting:
            _check_plain(name, value)
    elif isinstance(setting, int):
        limit = MOST_SEED if name == "seed" else MAX_INT
        if abs(setting) >= limit:
            raise UsageError(f"{name} is too large: it must be less than {limit:,}.")
    elif isinstance(setting, str) and ("\0" in setting or not _is_text(setting)):
        raise UsageError(f"{name} holds a character that is no text: {quote(setting)}.")


def _is_text(text: str) -> bool:
    """Whether a string can be encoded. Undecodable bytes from a terminal arrive as characters that
    cannot.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _flat(table: Any) -> Any:
    """Join the names of nested tables: `[set] dbe.kappa = 50` is a table in a table in TOML."""
    if not isinstance(table, Mapping):
        return table
    flat: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}.{k}": v for k, v in _flat(value).items()}
        else:
            flat[name] = value
    return flat


KINDS = {
    **dict.fromkeys(("int_parsing", "int_type", "int_from_float"), "a whole number"),
    **dict.fromkeys(("float_parsing", "float_type", "finite_number"), "a number"),
    "bool_type": "true or false",
}
"""The expected type of a setting, by pydantic's name of the error."""


def _sentence(why: ValidationError) -> str:
    """The first validation error as a sentence."""
    first = why.errors()[0]
    name = ".".join(str(part) for part in first["loc"])
    value = first.get("input")
    context = first.get("ctx", {})
    match first["type"]:
        case "greater_than_equal":
            expected = f"at least {context['ge']:g}"
        case "greater_than":
            expected = f"greater than {context['gt']:g}"
        case "less_than_equal":
            expected = f"at most {context['le']:g}"
        case "less_than":
            expected = f"less than {context['lt']:g}"
        case "literal_error":
            expected = f"one of {context['expected']}"
        case error_type if error_type in KINDS:
            expected = KINDS[error_type]
        case "extra_forbidden" if first["loc"][0] == "party":
            return str(
                unknown(
                    "setting of a party called", str(first["loc"][-1]), PartySettings.model_fields
                )
            )
        case "extra_forbidden":
            return f"There is no setting called {quote(name)}."
        case _:
            return f"{name}: {first['msg']}."
    return f"{name} must be {expected}, not {quote(value)}."


def read(path: str | Path, *, beside: bool = False) -> Experiment:
    """An experiment from a TOML file.

    Args:
        path: the file.
        beside: whether relative paths in it are relative to its folder, as in a file that a user
            has written. In the settings of a run, which Comity has written, paths are absolute.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
        if any(line.partition("=")[0].count(".") > MOST_DOTS for line in text.splitlines()):
            raise RecursionError
        settings = tomllib.loads(text)
        return experiment(relative_to(Path(path).parent, settings) if beside else settings)
    except UsageError:
        raise
    except OSError as why:
        raise UsageError(f"{path} cannot be read ({why.strerror}).") from why
    except ValueError as why:  # also invalid UTF-8, and numbers with thousands of digits
        raise UsageError(f"{path} is not valid TOML: {why}.") from why
    except RecursionError as why:
        raise UsageError(f"{path} is nested too deeply to be an experiment.") from why


def write(experiment: Experiment) -> str:
    """The experiment as TOML, with all settings."""
    values = experiment.model_dump()
    tables = {
        "set": values.pop("set"),
        **{f"party.{_key(n)}": p for n, p in values.pop("party").items()},
    }
    lines = [f"{name} = {_toml(value)}" for name, value in values.items() if value is not None]
    for title, table in tables.items():
        rows = [f"{name} = {_toml(value)}" for name, value in table.items() if value is not None]
        lines += ["", f"[{title}]", *rows] if rows else []
    return "\n".join(lines) + "\n"


def _key(name: str) -> str:
    is_bare = name.replace("-", "").replace("_", "").isalnum() and name.isascii()
    return name if is_bare else json.dumps(name)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        # TOML forbids the character 0x7f, JSON does not.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, tuple | list):
        return f"[{', '.join(_toml(v) for v in value)}]"
    return repr(value)
