"""The server's part of a job in which the server attacks a site.

Everything else of the job is real: a researcher has signed it, FLARE carries the requests, the
server has its certificate, and sites answer with their own request handlers. Each attack is written
as a line of JSON to attacks.jsonl in the operator's folder: its name, and the site's reason if it
refused.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2] / "support"))

from malicious_server import LawlessServer, Refused, change, weights

from comity.base.record import Model
from comity.deploy.data import site_settings
from comity.deploy.key_exchange import Identity
from comity.deploy.messages import RunCall, pack
from comity.deploy.server import KIT
from comity.deploy.transport import Transport
from comity.runs import config
from comity.wire.codec import encode

ATTACKS = "attacks.jsonl"
ATTACKED = "north"


def serve(transport: Transport, order: dict[str, Any], folder: Path) -> None:
    """Begin the run that was ordered, and attack one site of it."""
    identity = Identity.read(folder / KIT / "startup", "server")
    experiment = site_settings(config.experiment(order["settings"]))
    sites = {
        name: LawlessServer(transport, identity, name, order["run"], experiment)
        for name in transport.names
    }
    server = sites[ATTACKED]
    first = Model(weights(0.0))

    def begin() -> None:
        described = {name: site.introduce() for name, site in sites.items()}
        del described[ATTACKED]
        server.begin_with(described)

    replies: dict[str, Any] = {}

    def ask(name: str, message: Model) -> None:
        replies[name] = server.call("local", message, depth=1)

    def forged(round: int) -> bytes:
        head = RunCall(order["run"], ("local", 1, round, 0), None, False, {})
        return pack(head, encode(first))

    def changed_on_the_way() -> None:
        request = server.session.wrap(ATTACKED, forged(2))
        server.send_raw(request[:-1] + bytes([request[-1] ^ 1]))

    def replayed() -> None:
        request = server.session.wrap(ATTACKED, forged(1))
        server.send_raw(request)
        server.send_raw(request)

    attacks: dict[str, Callable[[], object]] = {
        "unsigned beginning": lambda: LawlessServer(
            transport, identity, ATTACKED, order["run"], experiment
        ).send_raw(forged(1)),
        "other settings": lambda: LawlessServer(
            transport, identity, ATTACKED, order["run"], experiment
        ).introduce(rounds=30),
        "begin": begin,
        "call": lambda: ask("call", first),
        "the same call": lambda: ask("the same call", first),
        "another message": lambda: ask("another message", Model(weights(0.001))),
        "round 0": lambda: server.call("local", first, depth=1, round=0),
        "a round too many": lambda: server.call("local", first, depth=1, round=4),
        "another occurrence": lambda: server.call("local", first, depth=1, occurrence=1),
        "another function": lambda: server.call("warm_up", first, depth=1),
        "unsigned call": lambda: server.send_raw(forged(2)),
        "changed on the way": changed_on_the_way,
        "replayed": replayed,
        "alone": server.evaluate_alone,
        "end": server.end,
        "after the end": lambda: server.call("local", first, depth=1, round=2),
    }
    with (folder / ATTACKS).open("w", encoding="utf-8") as file:
        for name, attack in attacks.items():
            try:
                attack()
                why = ""
            except Refused as refusal:
                why = str(refusal)
            line: dict[str, Any] = {"attack": name, "refused": why}
            if name in replies:
                line["values"] = change(replies[name], first.theta).tolist()
            print(json.dumps(line), file=file, flush=True)
