"""The shape of Comity: records, keys, tasks, fit, algorithms and the net. `from comity.core import *` is all a method needs."""

from comity.core.algorithm import (
    SHARES,
    Algorithm,
    Averaging,
    Work,
    Wrapper,
    algorithm,
    average,
    mixin,
    option,
)
from comity.core.fit import Fit, Loss, Stepper, fit, gradient, run
from comity.core.kernels import cross_entropy
from comity.core.key import Key
from comity.core.moments import Moments
from comity.core.net import Net
from comity.core.party import Info, Party, Traffic, with_task
from comity.core.record import (
    Empty,
    Model,
    Params,
    Sealed,
    drop,
    is_buffer,
    keep,
    on_device,
    payload,
    record,
    seal,
    trainable,
)
from comity.core.samples import PartyData, Samples
from comity.core.task import Batch, Task, in_chunks
from comity.core.training import Training, batches
from comity.errors import Refusal

__all__ = [
    "SHARES",
    "Algorithm",
    "Averaging",
    "Batch",
    "Empty",
    "Fit",
    "Info",
    "Key",
    "Loss",
    "Model",
    "Moments",
    "Net",
    "Params",
    "Party",
    "PartyData",
    "Refusal",
    "Samples",
    "Sealed",
    "Stepper",
    "Task",
    "Traffic",
    "Training",
    "Work",
    "Wrapper",
    "algorithm",
    "average",
    "batches",
    "cross_entropy",
    "drop",
    "fit",
    "gradient",
    "in_chunks",
    "is_buffer",
    "keep",
    "mixin",
    "on_device",
    "option",
    "payload",
    "record",
    "run",
    "seal",
    "trainable",
    "with_task",
]
