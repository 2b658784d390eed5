"""The accounting of a method: what is counted and declared about its messages.

It stands apart from the method, below it in the same file:

    @accounts_for(Scaffold)
    class ScaffoldAccounting(Accounting[Scaffold]):
        def traffic(self, info: Info, cohort: list[int]) -> Traffic:
            return Traffic(up=len(cohort) * self.method.size, down=len(cohort) * self.method.size)

`algorithm.accounting` is the accounting of an algorithm with its options. A method made from
another one inherits that one's accounting, unless it has its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from comity.base.declared import resolve_field_type
from comity.base.record import Params, is_record_type
from comity.core.party import Info, Traffic
from comity.errors import UsageError
from comity.training.settings import Training
from comity.training.task import LearningTask

if TYPE_CHECKING:
    from comity.core.release import PartyFacts, Release, Releases, Stage

A = TypeVar("A")
"""The class of the algorithm, or of a mixin."""
AccountingClass = TypeVar("AccountingClass", bound="type[Accounting[Any]]")

WireShapes = Mapping[str, LearningTask | tuple[int, ...] | None]
"""By field of a message, as in "Game.D": a tensor's shape (-1: any length), the network whose
weights it holds, or None if the shape is not known beforehand.
"""

SCALAR_BYTES = {float: 4, int: 4, bool: 1, None: 0, type(None): 0}
"""Bytes of a number in a message, by its type (`base.record.payload`)."""


class Accounting(Generic[A]):
    """The messages of `method`: their bytes, shapes, noise and warnings."""

    def __init__(self, method: A) -> None:
        self.method = method

    def traffic(self, info: Info, cohort: list[int]) -> Traffic:
        """Bytes of one round with this cohort, in closed form.

        Default: to each party what `message_for` declares to send, and back what `local` declares
        to reply.
        """
        # The signature of a method is read by a module that knows what an algorithm is.
        from comity.core.signature import message_type, reply_type

        down = self.message_bytes(message_type(type(self.method)), info)
        up = self.message_bytes(reply_type(type(self.method), "local"), info)
        return Traffic(up=len(cohort) * up, down=len(cohort) * down)

    def message_bytes(self, hint: Any, info: Info, name: str = "message") -> int:
        """Bytes of a message of a type, computed from that type and `wire_shapes`.

        Raises UsageError if they do not determine the bytes, for instance if a tensor's shape is
        not known.
        """
        if is_record_type(hint):
            return sum(
                self.message_bytes(resolve_field_type(hint, f), info, f"{hint.__name__}.{f.name}")
                for f in fields(hint)
            )
        if hint in SCALAR_BYTES:
            return SCALAR_BYTES[hint]
        shapes = self.wire_shapes(info.task, len(info.names))
        shape = shapes.get(name)
        if hint == Params and isinstance(shape, LearningTask):
            return self.weights_bytes(shape)
        if hint == Params and name not in shapes:
            return self.weights_bytes(info.task)
        raise UsageError(
            f"{type(self.method).__name__} does not say how many bytes {name} has: its accounting"
            " needs a method `traffic`."
        )

    def weights_bytes(self, network: LearningTask) -> int:
        """Bytes of the weights of a network that cross the wire."""
        return network.bytes(without=network.private)

    def start_traffic(self, info: Info) -> Traffic:
        """Bytes of `start`, in closed form. Default: none."""
        return Traffic()

    def finish_traffic(self, info: Info) -> Traffic:
        """Bytes of `finish`, in closed form. Default: none."""
        return Traffic()

    def join_traffic(self, info: Info) -> Traffic:
        """Bytes of `join`, in closed form. Default: each newcomer gets a round's message."""
        return Traffic(down=len(info.late) * self.traffic(info, [0]).down)

    def wire_shapes(self, task: LearningTask, parties: int) -> WireShapes:
        """Shapes of what messages hold beside the model's own weights. Default: nothing."""
        return {}

    def declared_trainings(self, stage: Stage, how: Training) -> Mapping[str, Sequence[Training]]:
        """The party functions that each party is called for once in a stage, and the trainings in
        each of them, if the party trains by `how`.

        Noise is accounted for by these trainings, before a run and during it. Default: one training
        a round, and one when a party joins.
        """
        if stage == "round":
            return {"local": [how]}
        if stage == "join":
            return {"warm_up": [how]}
        return {}

    def releases(self, function: str, facts: PartyFacts) -> Releases:
        """The noise through which the fields of a party function's reply leave a party.

        Fields that are not named leave without noise. Default: all of them.
        """
        return {}

    def server_release(self, info: Info, cohort: Sequence[int]) -> Release | None:
        """The noise through which a trusted server publishes what it learned from a cohort in a
        round; None (the default) without noise.

        It protects parties from each other, and not from the server.
        """
        return None

    def group_size(self, field: str, counts: Sequence[int]) -> int | None:
        """The least number of records behind one value of a field of a reply, as "Upload.obs".

        Only needed where the field's description does not tell it, for instance if a method
        averages over parts of a class. Default: None, which means that the description tells it.

        Arguments:
            field: the name of the field
            counts: the number of training records of each class that the party has
        """
        return None

    def warnings(self, info: Info) -> list[str]:
        """What a user should know before running the method with these options."""
        return []

    def privacy_warnings(self, info: Info) -> list[str]:
        """What the method's noise does not guarantee, unless a wrapper guarantees more."""
        return []


def accounts_for(method: type[Any]) -> Callable[[AccountingClass], AccountingClass]:
    """Make the decorated class the accounting of a method, and of those made from it."""

    def register(accounting: AccountingClass) -> AccountingClass:
        method.accounting_class = accounting
        return accounting

    return register
