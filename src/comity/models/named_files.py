"""The files that the setting `model` names in its options, such as the weights of an encoder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any

from comity.models.encoders import ENCODERS
from comity.models.exported import WEIGHTS
from comity.models.low_rank import base_folder
from comity.models.zoo import ZOO
from comity.spec import Spec, parse

OPTIONS = ("base", "path", "weights")
"""The options that may name a file or a folder: the base of low-rank factors (or a seed), the
folder of an encoder, and a file of weights.
"""

HERE = Path()
"""The working directory."""


def names_files(model: str) -> bool:
    """Return whether a network is built from a file or a folder that its options name."""
    return bool(_paths(parse(model)))


def named_files(model: str) -> list[Path]:
    """Return the absolute paths of the files that a network is built from; of a folder, those of
    all files in it.
    """
    files: list[Path] = []
    for name, path in _paths(parse(model)).items():
        if name == "base":
            files.append(path / WEIGHTS)
        elif path.is_dir():
            files += sorted(file for file in path.iterdir() if file.is_file())
        else:
            files.append(path)
    return files


def without_weights(model: str) -> tuple[str, str]:
    """Return the setting `model` without its option `weights`, and the file that this names; an
    empty text if it names none.
    """
    spec = parse(model)
    file = _paths(spec).get("weights")
    if file is None:
        return model, ""
    options = {name: value for name, value in _options(spec).items() if name != "weights"}
    return str(replace(spec, args=(), options=options)), str(file)


def located(model: str, folder: Path = HERE) -> str:
    """Return the setting `model` with absolute paths, so that a run can be resumed from any working
    directory. Relative ones are relative to `folder`.
    """
    if "(" not in model:
        return model
    spec = parse(model)
    if not (paths := _paths(spec, folder)):
        return model
    options = _options(spec) | {name: str(path) for name, path in paths.items()}
    return str(replace(spec, args=(), options=options))


def _paths(spec: Spec, folder: Path = HERE) -> dict[str, Path]:
    """The absolute path of each option that names a file or a folder."""
    options = _options(spec)
    texts = {
        name: value for name in OPTIONS if isinstance(value := options.get(name), str) and value
    }
    return {
        name: (folder / (base_folder(text) if name == "base" else Path(text))).resolve()
        for name, text in texts.items()
    }


def _options(spec: Spec) -> dict[str, Any]:
    """The options of a network by name, also those that are given by position."""
    builders: dict[str, Callable[..., object]] = {**ZOO, **ENCODERS}
    builder = builders.get(spec.name)
    names = list(signature(builder).parameters)[2:] if builder else []
    return dict(zip(names, spec.args, strict=False)) | spec.options
