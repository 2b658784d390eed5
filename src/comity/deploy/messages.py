"""What goes between the server and a site: a head that says what is asked or answered and, behind
it, what a method sends.

Both are records as bytes. A head is one of a few types that are named here, and small but for the
sealed parcels that come with a call; what a method may send its own works declare
(`core/validator.py`). So each is read only as what it can be, and nothing else is ever made of
somebody's bytes.
"""

from __future__ import annotations

from typing import Any

from comity.base.call import CallId
from comity.base.record import Cipher, Sealed, record
from comity.errors import CorruptedFile
from comity.runs.context import PartyInfo
from comity.wire.codec import decode, encode

LENGTH = 8  # bytes that say how long the head is

Named = tuple[str, int, int, int]
"""A call: the work's name, its owner's depth, the round, its use in that round."""


@record
class SignedKey:
    """A site's public key for parcels in one run, and by which certificate it says that it is its
    own.
    """

    name: str
    public: str
    certificate: str
    signature: str


# What the server asks. Each names the run that it is about.


@record
class Introduce:
    """Who are you, in a run with these settings?"""

    run: str
    settings: str
    """An experiment's settings as JSON."""
    comity: str
    """The server's version of Comity."""
    schema: str
    """A digest of the schema that all have agreed on, or nothing where there is none."""


@record
class Begin:
    """Everybody who takes part, in order."""

    run: str
    parties: dict[str, PartyInfo]
    signed_keys: dict[str, SignedKey]


@record
class RunCall:
    """Do a work; its letter is behind the head."""

    run: str
    call: Named
    after: Named | None
    first: bool
    inbox: dict[int, Sealed]


@record
class Evaluate:
    """Evaluate what you would deploy, given what is behind the head."""

    run: str
    after: Named | None
    round: int
    final: bool
    stage: str


@record
class EvaluateAlone:
    """Evaluate what your own data alone would have given you."""

    run: str
    round: int


@record
class Committed:
    """A checkpoint is on the server's disk: nobody will ask for a state before this one again."""

    run: str
    version: Named | None


@record
class End:
    """The run is over, after so many rounds, or was given up."""

    run: str
    rounds: int
    finished: bool


# What a site answers.


@record
class Introduced:
    """What a site says of itself."""

    said: PartyInfo
    shape: list[int]
    classes: int
    black: list[float]
    class_names: list[str]
    digest: str
    """A mark of its data under a secret of its own: whether they are the same again, and nothing
    else, can be told by it.
    """
    signed_key: SignedKey | None
    comity: str


@record
class Answered:
    """What came of a work, beside the reply, which is behind the head."""

    steps: int
    keeps: bool
    ruined: str
    warning: str
    unusable: tuple[int, ...]


@record
class Done:
    """It is done."""


@record
class Failed:
    """It is not done; a sentence that may be told."""

    why: str


ASKED = frozenset(
    (
        Introduce,
        PartyInfo,
        Begin,
        SignedKey,
        RunCall,
        Cipher,
        Evaluate,
        EvaluateAlone,
        Committed,
        End,
    )
)
ANSWERED = frozenset((Introduced, PartyInfo, SignedKey, Answered, Done, Failed))


def pack(head: Any, body: bytes = b"") -> bytes:
    """A head and what is behind it as one message."""
    first = encode(head, sealed_messages=True)
    return b"".join([len(first).to_bytes(LENGTH, "little"), first, body])


def unpack(message: bytes, kinds: frozenset[type], most: int) -> tuple[Any, bytes]:
    """A message's head, which is of one of these kinds, and the bytes behind it; `CorruptedFile` if
    it is no message of that size.
    """
    length = int.from_bytes(message[:LENGTH], "little")
    if len(message) > most or length > len(message) - LENGTH:
        raise CorruptedFile(
            f"A message of {len(message):,} bytes is too large, or not whole: no more than {most:,}"
            " may pass."
        )
    head = decode(
        message[LENGTH : LENGTH + length], sealed_messages=True, most_bytes=most, records=kinds
    )
    if type(head) not in kinds:
        raise CorruptedFile("A message does not say what it is about.")
    return head, message[LENGTH + length :]


def call_of(named: Named | None) -> CallId | None:
    """The call that a message names."""
    return None if named is None else CallId(*named)


def named(call: CallId | None) -> Named | None:
    """A call as messages name it."""
    return None if call is None else (call.function, call.depth, call.round, call.occurrence)
