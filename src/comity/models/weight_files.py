"""Initial weights from a file: safetensors, a state dict of PyTorch, or an exported model.

Nothing in such a file is run: safetensors holds tensors only, and a state dict is read with
`weights_only=True`.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from zipfile import BadZipFile

import torch
from torch import Tensor

from comity.base.key import Key
from comity.base.record import Params, is_buffer
from comity.errors import ComityError, UsageError
from comity.models.exported import SETTINGS, WEIGHTS, read_parameters
from comity.models.pretrained import InitialWeights, Pretrained
from comity.training.task import Network

NESTED = ("state_dict", "model")
"""The entries of a checkpoint that hold its state dict."""


def load_weights(network: Network, file: str) -> Pretrained:
    """Return the network with initial values from a file, matched by name and shape.

    Args:
        network: The network. What the file does not have is initialised as before.
        file: A .safetensors file, a state dict that `torch.save` wrote, or the folder of an
            exported model.

    Raises:
        UsageError: The file cannot be read, or nothing in it fits.
    """
    values = read_tensors(file)
    name = Path(file).name
    inner = network if isinstance(network, Pretrained) else None
    frozen = dict(inner.frozen) if inner else {}
    expected = (inner.network if inner else network).init(Key(0))
    names_in_file: dict[str, str] = {}  # names in the file, by the network's names
    misfits = []
    for ours, like in expected.items():
        theirs = next((n for n in _names_in_files(ours) if n in values), None)
        if theirs is None:
            continue
        if _fits(values[theirs], like):
            names_in_file[ours] = theirs
        else:
            misfits.append((theirs, f"{theirs} ({_shape(values[theirs])}, not {_shape(like)})"))
    if not names_in_file:
        example = f"{misfits[0][1]}" if misfits else ", ".join([*values][:3]) or "no tensors"
        raise UsageError(
            f"{file} has no weights for {network.name}, which has {next(iter(expected), 'none')}"
            f" ({len(expected)} tensors); the file has {example}."
        )
    fitting = {
        ours: values[theirs].to(expected[ours].dtype) for ours, theirs in names_in_file.items()
    }
    if bad := next((n for n, value in fitting.items() if not _is_finite(value)), None):
        raise UsageError(
            f"{file} cannot be used: {names_in_file[bad]} has values that are not finite."
        )
    wrong_shape = dict(misfits)
    used = {*names_in_file.values()}
    start = InitialWeights(
        source=name,
        kept=tuple(n for n in expected if n in fitting and n not in frozen),
        drawn=tuple(n for n in expected if n not in fitting and n not in frozen),
        frozen=tuple(frozen),
        unfilled=tuple(n for n in frozen if n not in fitting),
        unused=tuple(wrong_shape.get(n, n) for n in values if n not in used),
    )
    frozen |= {n: v for n, v in fitting.items() if n in frozen}
    before = inner.given if inner else {}
    return Pretrained(
        inner.network if inner else network,
        before | {n: v for n, v in fitting.items() if n not in frozen},
        frozen,
        start,
    )


def read_tensors(file: str) -> Params:
    """Return the tensors in a file by name. Raises UsageError if it cannot be read."""
    path = Path(file)
    folder = path.parent if path.name == WEIGHTS else path
    try:
        if (folder / SETTINGS).is_file():
            return read_parameters(folder)
        if path.suffix == ".safetensors":
            return _read_safetensors(path)
        return _read_state_dict(path)
    except FileNotFoundError as why:
        raise UsageError(f"There is no file of weights called {file}.") from why
    except (OSError, ComityError) as why:
        if isinstance(why, UsageError):
            raise
        raise UsageError(f"{file} cannot be read as weights: {_reason(why)}.") from why


def as_safetensors(file: str) -> bytes:
    """Return the tensors in a file in safetensors' format, in which nothing can be run."""
    from safetensors.torch import save

    return bytes(
        save({name: value.contiguous().clone() for name, value in read_tensors(file).items()})
    )


def _read_safetensors(path: Path) -> Params:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors: Params = load_file(path)
    except SafetensorError as why:
        raise UsageError(f"{path} cannot be read as safetensors: {_reason(why)}.") from why
    return tensors


def _read_state_dict(path: Path) -> Params:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, BadZipFile, ValueError) as why:
        raise UsageError(
            f"{path} holds no state dict of tensors alone: save model.state_dict() with torch.save"
            " or as safetensors."
        ) from why
    nested = next((n for n in NESTED if isinstance(content, Mapping) and n in content), None)
    if nested and isinstance(content[nested], Mapping):
        content = content[nested]
    if not isinstance(content, Mapping) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in content.items()
    ):
        raise UsageError(
            f"{path} holds no state dict of tensors alone: save model.state_dict() with torch.save"
            " or as safetensors."
        )
    return {name: value.detach() for name, value in content.items()}


def _names_in_files(name: str) -> Iterator[str]:
    """The names under which a file may have a tensor of a network: the network's own, the one
    without the mark of buffers, and that of the encoder alone.
    """
    yield name
    plain = name.replace("~", "") if is_buffer(name) else name
    if plain != name:
        yield plain
    for prefix in ("encoder.net.", "encoder."):  # `net` is an encoder of another library
        if plain.startswith(prefix):
            yield plain.removeprefix(prefix)


def _fits(value: Tensor, like: Tensor) -> bool:
    return value.shape == like.shape and value.is_floating_point() == like.is_floating_point()


def _is_finite(value: Tensor) -> bool:
    return bool(torch.isfinite(value).all())


def _shape(value: Tensor) -> str:
    return "x".join(map(str, value.shape)) or "one number"


def _reason(why: Exception) -> str:
    return (str(why).strip() or type(why).__name__).splitlines()[0][:200].rstrip(".")
