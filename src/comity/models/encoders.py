"""Encoders of other libraries by name: torchvision, timm, and Hugging Face from a local folder.

Each becomes an encoder with a new linear head, as a pair of modules. Nothing is downloaded: weights
come from files, or are drawn. The libraries are imported when such a network is built.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import redirect_stderr
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from comity.base.key import Key
from comity.errors import UsageError
from comity.models.layer_stream import LayerStream
from comity.models.stack import Shape


@dataclass(frozen=True)
class NamedEncoder:
    """An encoder of another library with a new head, before it becomes a network."""

    encoder: nn.Module
    head: nn.Module
    given: frozenset[str] = frozenset()
    """The names of the tensors whose values were loaded with the encoder."""
    weights: str = ""
    """A file of weights to load by name, if any."""


class ImageEncoder(nn.Module):
    """An encoder for images. Grey images are repeated in as many channels as it takes, and images
    are resized to the side `size` (0: as they are).
    """

    def __init__(self, net: nn.Module, channels: int, size: int) -> None:
        super().__init__()
        self.net = net
        self.channels = channels
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        """Return one row of values for each image."""
        return torch.as_tensor(self.net(self.fitted(x))).flatten(1)

    def fitted(self, x: Tensor) -> Tensor:
        """Return images with the channels and the size that the encoder takes."""
        if x.shape[1] == 1 and self.channels > 1:
            x = x.expand(-1, self.channels, -1, -1)
        if self.size:
            x = F.interpolate(x, (self.size, self.size), mode="bilinear", antialias=False)
        return x


class HuggingFaceEncoder(ImageEncoder):
    """An encoder of Hugging Face's transformers. The representation is its pooler's output, the
    first position's (`cls`), or the mean over positions.
    """

    def __init__(self, net: Any, channels: int, size: int, cut: str) -> None:
        super().__init__(net, channels, size)
        self.cut = cut
        self.takes_tokens = net.main_input_name == "input_ids"
        self.padding = net.config.pad_token_id if self.takes_tokens else None

    def forward(self, x: Tensor) -> Tensor:
        """Return one row of values for each sample."""
        mask = None
        if self.takes_tokens:
            tokens = x.long()
            mask = torch.ones_like(tokens) if self.padding is None else tokens != self.padding
            output = self.net(input_ids=tokens, attention_mask=mask.long())
        else:
            output = self.net(self.fitted(x))
        if self.cut == "pooler":
            pooled: Tensor | None = getattr(output, "pooler_output", None)
            if pooled is None:
                raise UsageError("This encoder has no pooler: use cut=cls or cut=mean.")
            return pooled.flatten(1)
        states: Tensor = output.last_hidden_state
        if self.cut == "cls":
            return states[:, 0]
        if states.dim() == 4:  # a map of a convolutional network
            return states.flatten(2).mean(2)
        if mask is None:
            return states.mean(1)
        weights = mask.to(states).unsqueeze(2)
        return (states * weights).sum(1) / weights.sum(1).clamp(min=1)


def torchvision(
    shape: Shape,
    classes: int,
    name: str = "resnet18",
    weights: str = "",
    freeze: bool = False,
    size: int | None = None,
) -> NamedEncoder:
    """A network of torchvision.models without its last linear layer, and a new head. `weights`: a
    file; `freeze`: train the head alone; `size`: resize images.
    """
    _check_image("torchvision", shape)
    library = _imported("torchvision.models", "torchvision")
    if name not in library.list_models():
        raise UsageError(f"torchvision has no model called {name!r}: see torchvision.models.")
    with _new_weights():
        net = _tried("torchvision", name, lambda: library.get_model(name, weights=None))
    _remove_last_linear(net)
    return _image_encoder("torchvision", net, 3, shape, classes, weights, freeze, size)


def timm(
    shape: Shape,
    classes: int,
    name: str = "resnet18",
    weights: str = "",
    freeze: bool = False,
    size: int | None = None,
) -> NamedEncoder:
    """A network of timm without its classifier, and a new head. `weights`: a file; `freeze`: train
    the head alone; `size`: resize images.
    """
    _check_image("timm", shape)
    library = _imported("timm", "timm")
    if not library.is_model(name):
        raise UsageError(f"timm has no model called {name!r}: timm.list_models() has the names.")
    with _new_weights():
        net = _tried(
            "timm", name, lambda: library.create_model(name, pretrained=False, num_classes=0)
        )
    return _image_encoder("timm", net, 3, shape, classes, weights, freeze, size)


def hf(
    shape: Shape,
    classes: int,
    path: str = "",
    cut: Literal["pooler", "cls", "mean"] = "pooler",
    freeze: bool = False,
    size: int | None = None,
) -> NamedEncoder:
    """A Hugging Face encoder (AutoModel) from the local folder `path`, with its weights, and a new
    head. `cut`: what of it is the representation; `freeze`: train the head alone.
    """
    if not path or not Path(path).is_dir():
        raise UsageError(
            f"hf needs the folder of an encoder, as in hf(path=./encoder), and {path or 'none'} is"
            " no folder."
        )
    library = _imported("transformers", "transformers")
    with _new_weights(), redirect_stderr(StringIO()):  # it reports missing weights there
        net, loaded = _tried(
            "hf",
            path,
            lambda: library.AutoModel.from_pretrained(
                path, local_files_only=True, trust_remote_code=False, output_loading_info=True
            ),
        )
    channels = getattr(net.config, "num_channels", 3)
    if not freeze and cut != "pooler":
        _freeze_unused_pooler(net)
    encoder = HuggingFaceEncoder(net, channels, size or 0, cut)
    missing = {f"encoder.net.{name}" for name in loaded["missing_keys"]}
    network = _with_head(f"hf(path={path})", encoder, shape, classes, freeze)
    names = {f"encoder.{name}" for name, _ in encoder.named_parameters()}
    return NamedEncoder(network.encoder, network.head, frozenset(names - missing))


ENCODERS: dict[str, Callable[..., NamedEncoder]] = {
    "torchvision": torchvision,
    "timm": timm,
    "hf": hf,
}


def _freeze_unused_pooler(net: nn.Module) -> None:
    """Freeze a pooler whose output is not the representation: it would get no gradient."""
    if isinstance(pooler := getattr(net, "pooler", None), nn.Module):
        pooler.requires_grad_(False)


def _image_encoder(
    library: str,
    net: nn.Module,
    channels: int,
    shape: Shape,
    classes: int,
    weights: str,
    freeze: bool,
    size: int | None,
) -> NamedEncoder:
    encoder = ImageEncoder(net, channels, size or 0)
    network = _with_head(library, encoder, shape, classes, freeze)
    return NamedEncoder(network.encoder, network.head, weights=weights)


def _with_head(
    what: str, encoder: nn.Module, shape: Shape, classes: int, freeze: bool
) -> NamedEncoder:
    """Return an encoder with a head of the right width, found by a forward pass of zeros."""
    try:
        with torch.no_grad():
            width = encoder.eval()(torch.zeros(2, *shape)).shape[1]
    except UsageError:
        raise
    except Exception as why:
        reason = (str(why).strip() or type(why).__name__).splitlines()[0][:200]
        raise UsageError(
            f"{what} does not fit samples of shape {shape}: {reason.rstrip('.')}."
        ) from why
    with _new_weights():
        head = nn.Linear(width, classes)
    return NamedEncoder(encoder.requires_grad_(not freeze) if freeze else encoder, head)


def _remove_last_linear(net: nn.Module) -> None:
    """Replace the last linear layer, the classifier, by the identity."""
    linear = [path for path, layer in net.named_modules() if isinstance(layer, nn.Linear)]
    if not linear:
        raise UsageError("This network of torchvision has no linear classifier to replace.")
    parent, _, name = linear[-1].rpartition(".")
    setattr(net.get_submodule(parent), name, nn.Identity())


def _check_image(library: str, shape: Shape) -> None:
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise UsageError(
            f"{library} needs images of 1 or 3 channels (channels x height x width), but a sample"
            f" has shape {shape}."
        )


def _imported(module: str, package: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as why:
        raise UsageError(
            f"This model needs the package {package}, which is not installed or cannot be imported:"
            " pip install 'comity[encoders]'."
        ) from why
    except Exception as why:  # as of a torchvision that was compiled for another torch
        reason = (str(why).strip() or type(why).__name__).splitlines()[0][:200].rstrip(".")
        raise UsageError(
            f"This model needs the package {package}, which cannot be imported:"
            f" {type(why).__name__}: {reason}. Install the build of it for torch"
            f" {torch.__version__}."
        ) from why


def _tried(library: str, name: str, build: Callable[[], Any]) -> Any:
    """Call another library; its errors become one sentence."""
    try:
        return build()
    except Exception as why:
        reason = (str(why).strip() or type(why).__name__).splitlines()[0][:200]
        raise UsageError(f"{library} cannot build {name}: {reason.rstrip('.')}.") from why


def _new_weights() -> LayerStream:
    """Return a context in which new layers draw the same values in every run."""
    return LayerStream(Key.root(0).fold("build"))
