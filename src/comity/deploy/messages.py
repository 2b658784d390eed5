"""The messages between the server and a site: a head that says what is requested or replied, and a
body with what the method sends.

Both are encoded records. A head has one of the types of this module, and is small except for the
sealed messages of a call. What a body may contain is declared by the method's party functions
(`core/validate.py`). So no bytes are ever decoded to anything but the expected types.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from comity.base.call import CallId
from comity.base.record import Cipher, Sealed, record
from comity.errors import CorruptedFile
from comity.runs.context import PartyInfo
from comity.wire.codec import decode, encode

LENGTH = 8  # bytes at the beginning that hold the length of the head

CallName = tuple[str, int, int, int]
"""A call: the party function, its owner's depth in the chain, the round, and the occurrence in that
round.
"""


@record
class SignedKey:
    """A site's public key for sealed messages in one run, signed by the key of its certificate."""

    name: str
    public: str
    certificate: str
    signature: str


# Requests of the server. Each names its run.


@record
class Introduce:
    """Asks a site to describe itself, for a run with these settings."""

    run: str
    settings: str
    """An experiment's settings as JSON."""
    comity: str
    """The server's version of Comity."""
    schema: str
    """A digest of the common schema; empty if there is none."""
    revoked: str = ""
    """The operator's signed list of revoked certificates; empty if there are none."""


@record
class TakeWeights:
    """Brings the file of initial weights that the settings of the run name; the body is the file,
    in safetensors' format.
    """

    run: str


@record
class Begin:
    """All parties that take part, in order."""

    run: str
    parties: dict[str, PartyInfo]
    signed_keys: dict[str, SignedKey]


@record
class RunCall:
    """Asks for a call of a party function; the body is its message."""

    run: str
    call: CallName
    after: CallName | None
    first: bool
    inbox: dict[int, Sealed]


@record
class SecureCall:
    """Asks for a call of a party function whose reply enters secure aggregation, and for the first
    step of that; the body is the message of the call.
    """

    run: str
    call: CallName
    after: CallName | None
    first: bool
    threshold: int
    """How many sites must take part to the end."""
    colluders: int
    """How many sites may collude with the server."""
    by_samples: bool
    """Whether replies are weighted by the number of training samples. If not, all weigh the
    same.
    """


@record
class SecureStep:
    """Asks for a later step of secure aggregation; the body is what the server collected in the
    step before.
    """

    run: str
    call: CallName
    step: str
    """A name in `comity.privacy.secagg.site.STEPS`."""


@record
class Evaluate:
    """Asks for an evaluation of the deployed model; the body is the server's message for it."""

    run: str
    after: CallName | None
    round: int
    final: bool
    stage: str


@record
class EvaluateAlone:
    """Asks for an evaluation of the model that the site would have from its own data alone."""

    run: str
    round: int


@record
class Committed:
    """Tells that a checkpoint is on the server's disk: no earlier state will be needed again."""

    run: str
    version: CallName | None


@record
class End:
    """Tells that the run is finished after so many rounds, or was given up."""

    run: str
    rounds: int
    finished: bool


@record
class AskRanges:
    """Asks for the range of each column of numbers: the first step of a profile of the data."""

    run: str
    """The name of the job."""
    comity: str
    schema: str
    """A digest of the common schema."""


@record
class AskProfile:
    """Asks for the profile of the site's data, with histograms over these ranges."""

    run: str
    comity: str
    schema: str
    ranges: dict[str, list[float]]


# Replies of a site.


@record
class Introduced:
    """A site's description of itself."""

    said: PartyInfo
    shape: list[int]
    classes: int
    black: list[float]
    class_names: list[str]
    digest: str
    """A digest of its data under its own secret. It only shows whether the data are the same as
    before.
    """
    signed_key: SignedKey | None
    comity: str
    split: str = ""
    """How the site's records are split, by the settings of its first run on these data."""
    threshold: float = 0.0
    """In a run with secure aggregation: the share of the sites that must take part to the end."""
    colluders: int = 0
    """In a run with secure aggregation: how many sites may collude with the server."""
    needs_weights: bool = False
    """Whether the site has yet to be sent the initial weights of the run."""


@record
class Answered:
    """The result of a call; the body is the reply of the party function."""

    steps: int
    keeps: bool
    ruined: str
    warning: str
    unusable: tuple[int, ...]


@record
class Prepared:
    """The result of a call whose reply enters secure aggregation, without the reply; the body has
    the site's keys, or nothing if a value is not finite.
    """

    steps: int
    keeps: bool
    ruined: str
    unfit: str
    """The first value of the reply that is not finite; empty if all are."""
    warning: str
    tensors: dict[str, list[int]]
    """The shapes of the reply's tensors."""


@record
class Ranges:
    """The range of each column of numbers of which the site tells one."""

    ranges: dict[str, list[float]]


@record
class Profiled:
    """The profile of the site's data; the body is JSON."""


@record
class Done:
    """Tells that a request was carried out."""


@record
class Failed:
    """Tells that a request was not carried out, with a reason that may leave the site."""

    why: str


REQUESTS = frozenset(
    (
        Introduce,
        PartyInfo,
        TakeWeights,
        Begin,
        SignedKey,
        RunCall,
        SecureCall,
        SecureStep,
        Cipher,
        Evaluate,
        EvaluateAlone,
        Committed,
        End,
        AskRanges,
        AskProfile,
    )
)
REPLIES = frozenset(
    (Introduced, PartyInfo, SignedKey, Answered, Prepared, Ranges, Profiled, Done, Failed)
)


def pack(head: Any, body: bytes = b"") -> bytes:
    """A head and a body as the bytes of one message."""
    encoded_head = encode(head, sealed_messages=True)
    return b"".join([len(encoded_head).to_bytes(LENGTH, "little"), encoded_head, body])


class PackedRequests(Mapping[str, bytes]):
    """Requests by site, each packed when it is read: a model that goes to many sites is in memory
    once until then.
    """

    def __init__(self, parts: Mapping[str, tuple[Any, bytes]]) -> None:
        self._parts = parts

    def __getitem__(self, name: str) -> bytes:
        return pack(*self._parts[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)


def unpack(message: bytes, kinds: frozenset[type], most: int) -> tuple[Any, bytes]:
    """The head and the body of a message.

    Arguments:
        message: the bytes of the message
        kinds: the types that the head may have
        most: the largest size of the message, in bytes

    Raises `CorruptedFile` if the message is too large, incomplete, or of another type.
    """
    head, body = unpack_view(message, kinds, most)
    return head, bytes(body)


def unpack_view(message: bytes, kinds: frozenset[type], most: int) -> tuple[Any, memoryview]:
    """The head and the body of a message, as `unpack`. The body, which may be large, is no copy."""
    length = int.from_bytes(message[:LENGTH], "little")
    if len(message) > most or length > len(message) - LENGTH:
        raise CorruptedFile(
            f"A message of {len(message):,} bytes is too large or incomplete: at most {most:,}"
            " bytes are allowed."
        )
    head = decode(
        message[LENGTH : LENGTH + length], sealed_messages=True, most_bytes=most, records=kinds
    )
    if type(head) not in kinds:
        raise CorruptedFile("A message has no head of a known type.")
    return head, memoryview(message)[LENGTH + length :]


def reply_body(packed: bytes) -> bytes:
    """The body of a reply, whatever its size: one that was packed here, or whose head was read."""
    return unpack(packed, REPLIES, len(packed))[1]


def to_call_id(name: CallName | None) -> CallId | None:
    """The call that a message names."""
    return None if name is None else CallId(*name)


def call_name(call: CallId | None) -> CallName | None:
    """A call as messages name it."""
    return None if call is None else (call.function, call.depth, call.round, call.occurrence)
