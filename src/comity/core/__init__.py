"""Everything that the file of a method imports: records, keys, tasks, trainings, `Algorithm` and
`Server`. A method has the line `from comity.core import *`.
"""

from comity.base.call import Edge
from comity.base.content import Content, describe, describe_reply
from comity.base.key import Key
from comity.base.record import (
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
from comity.base.samples import PartyData, Samples
from comity.core.accounting import Accounting, WireShapes, accounts_for
from comity.core.aggregate import Averaging, average, check_like
from comity.core.algorithm import (
    Algorithm,
    AnyAlgorithm,
    C,
    M,
    PartyFunction,
    S,
    algorithm,
    mixin,
    on_party,
    only_averages,
    option,
)
from comity.core.party import Info, Party, Traffic, with_task
from comity.core.release import NOTHING, PartyFacts, Release, Releases, Stage
from comity.core.server import Server
from comity.core.traits import LEAVES, SHARES, Traits
from comity.core.wrapper import Wrapped, Wrapper, WrapperAccounting
from comity.errors import UsageError
from comity.training.kernels import input_gradient, mean_cross_entropy
from comity.training.requests import (
    Draw,
    FitRequest,
    Fitted,
    FoldRequest,
    Loss,
    PartyCoroutine,
    Pull,
    curvature,
    plain,
    value_and_gradient,
)
from comity.training.settings import Moments, Training, batches
from comity.training.task import Batch, LearningTask, in_chunks

__all__ = [
    "LEAVES",
    "NOTHING",
    "SHARES",
    "Accounting",
    "Algorithm",
    "AnyAlgorithm",
    "Averaging",
    "Batch",
    "C",
    "Content",
    "Draw",
    "Edge",
    "Empty",
    "FitRequest",
    "Fitted",
    "FoldRequest",
    "Info",
    "Key",
    "LearningTask",
    "Loss",
    "M",
    "Model",
    "Moments",
    "Params",
    "Party",
    "PartyCoroutine",
    "PartyData",
    "PartyFacts",
    "PartyFunction",
    "Pull",
    "Release",
    "Releases",
    "S",
    "Samples",
    "Sealed",
    "Server",
    "Stage",
    "Traffic",
    "Training",
    "Traits",
    "UsageError",
    "WireShapes",
    "Wrapped",
    "Wrapper",
    "WrapperAccounting",
    "accounts_for",
    "algorithm",
    "average",
    "batches",
    "check_like",
    "curvature",
    "describe",
    "describe_reply",
    "drop",
    "in_chunks",
    "input_gradient",
    "is_buffer",
    "keep",
    "mean_cross_entropy",
    "mixin",
    "on_device",
    "on_party",
    "only_averages",
    "option",
    "payload",
    "plain",
    "record",
    "seal",
    "trainable",
    "value_and_gradient",
    "with_task",
]
