"""The weights of an exported model, read without building the model.

`comity export` writes `model.json` and `weights.safetensors` (`comity.studies.export`). A network
that starts from an exported model needs its parameters only, so nothing that `model.json` names,
such as a user's Python file, is imported or run here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from comity.base.record import Params
from comity.checksums import UNREADABLE, Checksum, read_json
from comity.errors import ComityError
from comity.wire.blob import InvalidBlob, read_blob

WEIGHTS = "weights.safetensors"
SETTINGS = "model.json"


def read_weights(folder: Path, settings: dict[str, Any]) -> bytes:
    """Read the weights file of an exported model as bytes.

    Raises ValueError if its checksum is not the one in `settings`, the content of `model.json`.
    """
    weights = (folder / WEIGHTS).read_bytes()
    # Earlier versions wrote no checksum of the weights.
    if "weights" in settings and Checksum(*settings["weights"]) != Checksum.of(weights):
        raise ValueError("the weights differ from those that were exported")
    return weights


def no_model_in(folder: Path) -> ComityError:
    """Return the error for a folder without a readable exported model."""
    return ComityError(f"{folder} holds no exported model, or a damaged one.")


def read_parameters(folder: Path) -> Params:
    """Return the parameters of the model that `comity export` wrote to `folder`, by name.

    Raises ComityError if there is none, or if its files are damaged.
    """
    try:
        settings = read_json(folder / SETTINGS)
        skeleton, tensors = read_blob(read_weights(folder, settings))
        parameters, _ = skeleton["v"]  # the fields of `comity.studies.export.State`
        return {name: tensors[node["t"]] for name, node in parameters["d"]}
    except (*UNREADABLE, InvalidBlob) as why:
        raise no_model_in(folder) from why
