"""Message validation: the types that party functions declare, and that nothing else passes.

`tests/core/test_validate_methods.py` checks that all messages of methods pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Generic, get_args, get_origin

import pytest
import torch
from message_checks import TASK, check_shapes, check_types

import comity.algorithms
from comity.algorithms.adcol import Game, Reps
from comity.algorithms.dbe import OFFSET
from comity.algorithms.fedavg import AveragedModel, FedAvg
from comity.algorithms.scaffold import Change, Control
from comity.base.call import CallId
from comity.base.record import Cipher, is_record_type
from comity.components.bank import Teacher
from comity.components.overlap import Help
from comity.components.pilot import Mean, Tried
from comity.core import (
    C,
    Empty,
    Key,
    LearningTask,
    Model,
    Params,
    Party,
    Sealed,
    UsageError,
    algorithm,
    drop,
    on_party,
    record,
    seal,
)
from comity.core.signature import (
    evaluation_message_type,
    party_functions,
    records_in,
    records_of,
    signature,
)
from comity.core.validate import MessageValidator
from comity.core.wrapper import Wrapper
from comity.errors import CorruptedFile
from comity.metrics.evaluation import Evaluation, Score
from comity.models import build
from comity.training.task import batchnorm_private
from comity.wire.codec import decode, encode

pytestmark = pytest.mark.quick

NETWORK = build("fedbn-cnn(scale=0.06)", (1, 8, 8), 10)
PRIVATE = batchnorm_private(NETWORK, "params_only")
THETA = drop(TASK.init(Key(0)), PRIVATE)
NAME = next(iter(THETA))


def type_text(hint: Any) -> str:
    """The text of a type as in its declaration."""
    kind, inner = get_origin(hint), get_args(hint)
    if kind is None:
        return getattr(hint, "__name__", str(hint))
    if "Union" in str(kind):
        return " | ".join(map(type_text, inner))
    return f"{kind.__name__}[{', '.join(map(type_text, inner))}]"


MODEL = {"local": ("Model", "Model"), "warm_up": ("Model", "None")}
WRAPPER = {
    "agree": ("Mean", "None"),
    "judge": ("Model", "Score"),
    "mean": ("Model", "Mean"),
    "weigh": ("Tried", "None"),
    "warm_up": ("Model", "None"),
}
DECLARED: dict[str, dict[str, tuple[str, str]]] = {
    "adcol": {"align": ("Game", "None"), "local": ("Game", "Reps"), "warm_up": ("Game", "None")},
    "affine-robust": MODEL,
    "afl": {"local": ("Model", "Judged"), "warm_up": ("Model", "None")},
    "apfl": MODEL,
    "centralized": {"hand_over": ("Empty", "Data"), "warm_up": ("Model", "None")},
    "fedavg+dbe": WRAPPER,
    "ditto": MODEL,
    "drfa": {
        "judge": ("Snapshot", "float"),
        "local": ("Until", "Snapped"),
        "warm_up": ("Until", "None"),
    },
    "fedavg+dp": {"warm_up": ("Model", "None")},
    "fedavg+krum": {"warm_up": ("Model", "None")},
    "fedavg+median": {"warm_up": ("Model", "None")},
    "fedavg+trimmed": {"warm_up": ("Model", "None")},
    "relay+ldp": {"warm_up": ("Teacher", "None")},
    "fada": {
        "adapt": ("dict[int, Lesson]", "Adapted"),
        "local": ("dict[int, Lesson]", "dict[int, Shown]"),
        "warm_up": ("Model", "None"),
    },
    "fd": {"local": ("Teacher", "Answers"), "warm_up": ("Teacher", "None")},
    "fed-sps": {
        "assist": ("Empty", "dict[int, Sealed[Help]]"),
        "local": ("Empty | More", "dict[int, float]"),
        "send": ("Group", "dict[int, Sealed[Model]]"),
        "tuned": ("Empty", "None"),
        "warm_up": ("Empty", "None"),
    },
    "fedavg": MODEL,
    "fedbabu": MODEL | {"tune": ("Model", "None")},
    "fedbn": MODEL,
    "fedgen": {
        "agree": ("Labels", "None"),
        "count": ("Empty", "Labels"),
        "local": ("Taught", "Model"),
        "warm_up": ("Taught", "None"),
    },
    "fedmeta": MODEL | {"hand_over": ("Empty", "Data")},
    "fedper": MODEL,
    "fedprox": MODEL,
    "fedrep": MODEL,
    "fedreptile": MODEL,
    "fedrod": MODEL,
    "feduad": {
        "align": ("Both", "Both"),
        "prior": ("Both", "Sealed[Prior]"),
        "warm_up": ("Both", "None"),
    },
    "fedufo": {
        "align": ("Both", "Both"),
        "local": ("Both", "Both"),
        "look": ("Both", "float"),
        "prior": ("Both", "Sealed[Prior]"),
        "warm_up": ("Both", "None"),
    },
    "lg-fedavg": MODEL,
    "moon": MODEL,
    "partialfed": MODEL,
    "fedavg+mr": WRAPPER,
    "fedavg+prbm": WRAPPER,
    "per-fedavg": MODEL,
    "q-ffl": {"local": ("Model", "Trained"), "warm_up": ("Model", "None")},
    "relay": {
        "local": ("Teacher", "Upload"),
        "show": ("Empty", "Upload"),
        "warm_up": ("Teacher", "None"),
    },
    "relay-p2p": {
        "local": ("Empty", "None"),
        "tell": ("Group", "dict[int, Sealed[Told]]"),
        "warm_up": ("Empty", "None"),
    },
    "scaffold": {"local": ("Control", "Change"), "warm_up": ("Control", "None")},
    "fedavg+serveropt": {"warm_up": ("Model", "None")},
    "solo": {"local": ("Empty", "Empty"), "warm_up": ("Empty", "None")},
    "apple": {"local": ("Cores", "Core"), "warm_up": ("Cores", "None")},
    "fed-mtl": {"local": ("Held", "Model"), "warm_up": ("Held", "None")},
    "fedala": MODEL,
    "fedcp": MODEL,
    "fml": MODEL,
    "gpfl": MODEL,
    "pfedme": MODEL,
    "fedfomo": {
        "local": ("Empty", "Model"),
        "weigh": ("Offered", "dict[int, float]"),
        "warm_up": ("Empty", "None"),
    },
    "fedproto": {"local": ("Guide", "Prototypes"), "warm_up": ("Guide", "None")},
    "fedtgp": {"local": ("Guide", "Prototypes"), "warm_up": ("Guide", "None")},
}
NAMED_VIEWS = {
    "drfa": "Until",
    "feduad": "Both",
    "fedufo": "Both",
    "fedgen": "Taught",
    "scaffold": "Control",
}
NAMED_VIEWS |= {"fedproto": "Guide", "fedtgp": "Guide"}
"""Types of messages for evaluation that are neither Model nor Empty."""


EVERY_METHOD = sorted(
    {*DECLARED}
    | {
        name if not issubclass(comity.algorithms.find(name), Wrapper) else f"fedavg+{name}"
        for name in comity.algorithms.names()
        if name not in {text.rpartition("+")[2] for text in DECLARED}
    }
)
"""All methods, wrappers around a host. A new method needs no entry in DECLARED."""


@pytest.mark.parametrize("text", EVERY_METHOD)
def test_every_message_has_a_type(text: str) -> None:
    """A party knows the type of each message and reply in advance."""
    algorithm = comity.algorithms.compose(text)
    check_types(algorithm)


@pytest.mark.parametrize("text", DECLARED)
def test_signatures_of_known_methods(text: str) -> None:
    algorithm = comity.algorithms.compose(text)
    signatures = {
        name: signature(algorithm, depth, name)
        for depth, name in party_functions(algorithm)
        if depth == 0
    }
    assert {name: tuple(map(type_text, hints)) for name, hints in signatures.items()} == DECLARED[
        text
    ]
    assert type_text(evaluation_message_type(algorithm)) == (
        "Empty" if algorithm.traits.self_contained else NAMED_VIEWS.get(text, "Model")
    )


def test_messages_of_a_wrapped_host_have_its_types() -> None:
    algorithm = comity.algorithms.compose("scaffold+dbe")
    assert signature(algorithm, 1, "local") == (Control, Change)
    assert signature(algorithm, 0, "judge") == (Control, Score)
    assert (
        signature(algorithm, 0, "warm_up").message is evaluation_message_type(algorithm) is Control
    )


@pytest.mark.parametrize("text", EVERY_METHOD)
def test_every_tensor_has_a_declared_shape(text: str) -> None:
    """Weights have the shapes of a model; every other tensor has a declared shape, or is declared
    to have any.
    """
    check_shapes(comity.algorithms.compose(text))


def test_the_records_of_a_run() -> None:
    assert records_of(comity.algorithms.compose("fedavg")) == {Model, Cipher}
    assert records_of(comity.algorithms.compose("fedavg+dbe")) == {
        Model,
        Mean,
        Tried,
        Score,
        Cipher,
    }
    assert Help in records_of(comity.algorithms.compose("fed-sps"))  # in a sealed message
    assert Score in records_in(Evaluation)  # in a field


# --- methods with missing annotations


@record
class Own:
    """A reply of a user's method."""

    theta: Params
    more: list[Model]


class Between(AveragedModel[C], Generic[C]):
    """An intermediate generic class."""


@algorithm
class Undeclared(Between[Params]):
    """Its `local` has no annotations, so those of the overridden function apply; its `other` has
    none at all.
    """

    def init_party(self, key: Key, party: Party) -> Params:
        return {}

    async def local(self, state, m, party, key):
        return state, m

    @on_party
    async def other(self, state, m, party, key):
        return state, m

    @on_party
    async def sealing(self, state: Params, m: Own, party: Party, key: Key) -> tuple[Params, Sealed]:
        return state, seal(m, 1)

    def newcomer_state(self, state: Params, theta: Params) -> Params:
        return state

    def deployed_model(self, state: Params, m: Model, party: Party) -> Params:
        return m.theta


def test_unannotated_function_has_the_types_it_overrides() -> None:
    assert signature(Undeclared(), 0, "local") == (
        Model,
        Any,
    )  # AveragesWeights leaves replies open
    assert signature(Undeclared(), 0, "warm_up") == (Model, None)
    assert records_of(Undeclared()) == {Model, Own, Cipher}


def test_undeclared_types_are_refused() -> None:
    validator = MessageValidator(Undeclared(), TASK, 4)
    with pytest.raises(
        UsageError,
        match=r"The message for other has no declared type: annotate",
    ):
        validator.check_message(CallId("other", 0, 1, 0), Model(THETA))
    with pytest.raises(UsageError, match="The reply of local has no declared type"):
        validator.check_reply(CallId("local", 0, 1, 0), Model(THETA))
    with pytest.raises(UsageError, match="The content of a sealed message has no declared type"):
        validator.check_sealed_message(Own({}, []))
    validator.check_message(CallId("sealing", 0, 1, 0), Own(THETA, [Model(THETA)]))
    with pytest.raises(UsageError, match=r"has 'nothing\.weight' in Model\.theta"):
        validator.check_message(
            CallId("sealing", 0, 1, 0), Own({}, [Model({"nothing.weight": torch.zeros(1)})])
        )


# --- invalid messages


def validator_for(text: str, most_bytes: int = 1 << 30) -> MessageValidator:
    return MessageValidator(comity.algorithms.compose(text), TASK, 4, most_bytes)


def call_of(name: str, depth: int = 0) -> CallId:
    return CallId(name, depth, 1, 0)


D = comity.algorithms.compose("adcol(hidden=8)").accounting.wire_shapes(TASK, 4)["Game.D"]
assert isinstance(D, LearningTask)
ONES = torch.ones(10, dtype=torch.bool)
MEANS = torch.zeros(10, TASK.width)
TEACHER = Teacher(MEANS, ONES, MEANS[None], ONES[None], {})
MESSAGES = {
    "fedavg": (call_of("local"), Model(THETA)),
    "scaffold": (call_of("local"), Control(THETA, {NAME: THETA[NAME]})),
    "fedavg+dbe": (call_of("agree"), Mean(torch.zeros(TASK.z_shape), Tried(1.0))),
    "adcol(hidden=8)": (call_of("local"), Game(D.init(Key(0)), {}, Empty())),
    "relay": (call_of("local"), TEACHER),
}
REPLIES = {
    "fedavg": (call_of("local"), Model(THETA)),
    "adcol(hidden=8)": (call_of("local"), Reps(torch.zeros(7, TASK.width), {})),
    "scaffold": (call_of("local"), Change(THETA, {})),
    "fedufo": (call_of("look"), 0.5),
}


@pytest.mark.parametrize("text", MESSAGES)
def test_valid_messages_pass(text: str) -> None:
    validator_for(text).check_message(*MESSAGES[text])


@pytest.mark.parametrize("text", REPLIES)
def test_valid_replies_pass(text: str) -> None:
    validator_for(text).check_reply(*REPLIES[text])


def other(**changes: Any) -> Callable[[Any], Any]:
    return lambda right: replace(right, **changes)


WIDE = torch.zeros(3, TASK.width)
SHORT = {**THETA, NAME: THETA[NAME][:1]}
BAD: list[tuple[str, Callable[[Any], Any], str]] = [
    (
        "fedavg",
        lambda _: THETA,
        "The message for local should be Model, but the dict that came is not.",
    ),
    ("fedavg", lambda _: Control(THETA, {}), "should be Model, but the Control that came is not"),
    ("fedavg", lambda _: None, "should be Model, but the NoneType"),
    ("fedavg", lambda right: [right], "should be Model, but the list"),
    ("fedavg", other(theta={NAME: 1.0}), "is not as declared: Model.theta should be Params"),
    ("fedavg", other(theta=[]), "is not as declared: Model.theta should be Params"),
    (
        "fedavg",
        other(theta={**THETA, "more.weight": torch.zeros(1)}),
        "has 'more.weight' in Model.theta, which is not of the model",
    ),
    ("fedavg", other(theta=THETA | {OFFSET: torch.zeros(1)}), f"has '{OFFSET}' in Model.theta"),
    (
        "fedavg",
        other(theta=TASK.init(Key(0))),
        "which is not of the model, or stays with its party",
    ),
    (
        "fedavg",
        other(theta=SHORT),
        rf"has float32\[1, .*\] as {NAME} in Model.theta, where float32\[.*\] belongs",
    ),
    (
        "fedavg",
        other(theta={**THETA, NAME: THETA[NAME].double()}),
        f"has float64.* as {NAME} in Model.theta, where float32",
    ),
    (
        "fedavg",
        other(theta={**THETA, NAME: THETA[NAME] * torch.nan}),
        f"has values that are not finite: theta.{NAME}",
    ),
    (
        "fedavg",
        other(theta={**THETA, NAME: THETA[NAME] / 0}),
        f"has values that are not finite: theta.{NAME}",
    ),
    ("scaffold", other(c=SHORT), f"as {NAME} in Control.c, where"),
    (
        "fedavg+dbe",
        other(z=torch.zeros(1)),
        r"has \[1\] as the shape of Mean.z, where \[.*\] belongs",
    ),
    (
        "fedavg+dbe",
        other(kappa=Tried(1.0, True, Empty())),
        "has something in before, and nobody says what that is",
    ),
    ("fedavg+dbe", other(kappa=Tried(float("inf"))), "not finite: kappa.value"),
    ("fedavg+dbe", other(kappa=1.0), "Mean.kappa should be Tried | None"),
    ("adcol(hidden=8)", other(D={k: v[:1] for k, v in D.init(Key(0)).items()}), "in Game.D, where"),
    ("adcol(hidden=8)", other(D=THETA), "in Game.D, which is not of the model"),
    ("adcol(hidden=8)", other(shared=D.init(Key(0))), "in Game.shared, where"),
    (
        "relay",
        other(means=torch.zeros(10, 1)),
        r"has \[10, 1\] as the shape of Teacher.means, where \[10, ",
    ),
    ("relay", other(obs=MEANS), r"as the shape of Teacher.obs, where \[-1, 10, "),
    (
        "relay",
        other(known=torch.ones(11)),
        r"has \[11\] as the shape of Teacher.known, where \[10\]",
    ),
]


@pytest.mark.parametrize(
    ("text", "harm", "sentence"),
    BAD,
    ids=lambda value: value[:60] if isinstance(value, str) else "",
)
def test_invalid_messages_are_refused(text: str, harm: Callable[[Any], Any], sentence: str) -> None:
    call, right = MESSAGES[text]
    with pytest.raises(UsageError, match=sentence.replace("| None", r"\| None")):
        validator_for(text).check_message(call, harm(right))


@pytest.mark.parametrize(
    ("text", "reply", "sentence"),
    [
        ("fedavg", Model(SHORT), f"The reply of local has float32.* as {NAME} in Model.theta"),
        ("fedavg", Model(TASK.init(Key(0))), "or stays with its party"),
        ("fedavg", THETA, "should be Model, but the dict"),
        ("adcol(hidden=8)", Reps(torch.zeros(7, 1), {}), r"as the shape of Reps.z, where \[-1, "),
        (
            "adcol(hidden=8)",
            Reps(torch.zeros(7 * TASK.width), {}),
            r"as the shape of Reps.z, where \[-1, ",
        ),
        ("fedufo", "0.5", "should be float, but the str"),
    ],
)
def test_invalid_replies_are_refused(text: str, reply: Any, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        validator_for(text).check_reply(REPLIES[text][0], reply)


def test_replies_that_are_not_finite_pass() -> None:
    validator_for("fedavg").check_reply(
        call_of("local"), Model({**THETA, NAME: THETA[NAME] * torch.nan})
    )


def test_too_large_messages_are_refused() -> None:
    size = sum(value.nbytes for value in THETA.values())
    validator_for("fedavg", size).check_message(call_of("local"), Model(THETA))
    with pytest.raises(
        UsageError,
        match=(
            rf"The message for local weighs {size:,} bytes, and no more than {size - 1:,} may pass"
        ),
    ):
        validator_for("fedavg", size - 1).check_message(call_of("local"), Model(THETA))
    with pytest.raises(UsageError, match="The reply of local weighs"):
        validator_for("fedavg", size - 1).check_reply(call_of("local"), Model(THETA))
    with pytest.raises(UsageError, match="The message for evaluate weighs"):
        validator_for("fedavg", 3).check_evaluation_message(Model(THETA))
    with pytest.raises(UsageError, match="The content of a sealed message weighs"):
        validator_for("fed-sps", 3).check_sealed_message(Model(THETA))


@pytest.mark.parametrize(
    "name",
    [
        "init_party",
        "__init__",
        "round",
        "message_for",
        "deployed_model",
        "train_locally",
        "evaluate",
        "wire_shapes",
        "",
        None,
    ],
)
def test_unknown_party_functions_are_refused(name: Any) -> None:
    for check in (validator_for("fedavg").check_message, validator_for("fedavg").check_reply):
        with pytest.raises(UsageError, match="FedAvg has no party function"):
            check(call_of(name), Model(THETA))


@pytest.mark.parametrize("depth", [-1, 1, 2, True, None])
def test_unknown_depths_are_refused(depth: Any) -> None:
    with pytest.raises(UsageError, match="There is no algorithm at depth"):
        validator_for("fedavg").check_message(call_of("local", depth), Model(THETA))


@pytest.mark.parametrize("when", [(-1, 0), (1, -1), (1.5, 0), (True, 0), ("1", 0), (1, None)])
def test_invalid_rounds_are_refused(when: tuple[Any, Any]) -> None:
    with pytest.raises(UsageError, match="which is none"):
        validator_for("fedavg").check_message(CallId("local", 0, *when), Model(THETA))


def test_evaluation_messages() -> None:
    validator_for("fedavg+dbe").check_evaluation_message(Model(THETA))
    validator_for("adcol").check_evaluation_message(Empty())
    for text, content in (("fedavg", Empty()), ("adcol", Game({}, {})), ("fedavg", Model(SHORT))):
        with pytest.raises(UsageError, match="The message for evaluate"):
            validator_for(text).check_evaluation_message(content)


def test_sealed_messages() -> None:
    help_message = Help({NAME: THETA[NAME]}, None, None, 0.5, 3, 0.5)
    for right in (Model(THETA), help_message):
        validator_for("fed-sps").check_sealed_message(right)
    wrong = (
        Empty(),
        THETA,
        Model(SHORT),
        replace(help_message, grads=SHORT),
        replace(help_message, y=torch.zeros(2, 2)),
    )
    for content in wrong:
        with pytest.raises(UsageError, match="The content of a sealed message"):
            validator_for("fed-sps").check_sealed_message(content)
    with pytest.raises(UsageError, match="The content of a sealed message"):
        validator_for("fedavg").check_sealed_message(Model(THETA))  # FedAvg has no sealed messages


# --- records that are not declared


def test_undeclared_records_are_not_constructed() -> None:
    calls: list[str] = []

    @record
    class Spy:
        """Notes its construction."""

        x: int

        def __post_init__(self) -> None:
            calls.append("constructed")

    blob = encode([Model(THETA), Spy(1)])
    calls.clear()
    with pytest.raises(CorruptedFile, match=r"a record '.*Spy' has no place in it"):
        decode(blob, records=records_of(comity.algorithms.compose("fedavg")))
    assert calls == []
    assert decode(blob)[1].x == 1
    with pytest.raises(CorruptedFile, match="Model' has no place in it"):
        decode(encode(Model(THETA)), records=frozenset())


def test_a_method_is_no_record() -> None:
    """A message cannot construct algorithms, although they are frozen dataclasses, too."""
    assert not any(
        is_record_type(cls)
        for cls in (FedAvg, LearningTask, MessageValidator, CallId, dict, Sealed, Key)
    )
