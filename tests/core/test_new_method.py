"""A new method in its own file passes the checks of Comity's methods without an entry in any table."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

import pytest
from message_checks import check_shapes, check_types

import comity
from comity.algorithms import compose
from comity.core.signature import party_functions, reply_contents
from comity.studies import plan

METHOD = '''
"""FedAvg whose parties also report how long they trained.

Idea: a reply record with one more number.
"""

from __future__ import annotations

from comity.algorithms.fedavg import FedAvg
from comity.base.content import WEIGHTS
from comity.core import *


@record
class Timed:
    theta: Params = describe(WEIGHTS)
    steps: int{description}


@algorithm
class Counting(FedAvg):
    def round(self, theta: Params, server: Server, t: int) -> Params:
        mean = server.averaging()
        messages = {i: self.message_for(theta, i) for i in server.sample(t)}
        for i, reply in server.replies(self.local, messages):
            mean.add(reply.theta, server.info.sizes[i])
        return mean.value()

    @on_party
    async def local(self, state: Params, m: Model, party: Party, key: Key) -> tuple[Params, Timed]:
        done = await party.fit(plain, m.theta | state, key)
        private, shared = self.private_part(done.theta, party.task), self.shared_part(done.theta, party.task)
        return private, Timed(shared, done.steps)
'''
DESCRIPTION = ' = describe(Content("how many steps it trained", "", "training"))'
SMALL: dict[str, Any] = {
    "rounds": 2,
    "epochs": 1,
    "batch": 8,
    "model": "mlp2(width=6)",
    "parties": 3,
}


@pytest.fixture
def method(tmp_path: Path) -> str:
    path = tmp_path / "counting.py"
    path.write_text(METHOD.replace("{description}", DESCRIPTION), encoding="utf-8")
    return str(path)


def test_types_and_shapes_are_declared(method: str) -> None:
    check_types(compose(method))
    check_shapes(compose(method))


def test_all_fields_of_replies_are_described(method: str) -> None:
    algorithm = compose(method)
    contents = {
        field: content
        for place in party_functions(algorithm)
        for field, content in reply_contents(algorithm, *place).items()
    }
    assert contents.keys() == {"Timed.theta", "Timed.steps"}
    assert all(contents.values())


def test_bytes_are_derived(method: str, tmp_path: Path) -> None:
    result = comity.run(method, out=tmp_path / "run", **SMALL)
    _, rounds = plan.traffic(result.job)
    assert sum(round_bytes.up for round_bytes in rounds) == result.summary["bytes"]["up"]
    assert sum(round_bytes.down for round_bytes in rounds) == result.summary["bytes"]["down"]
    plain = comity.run("fedavg", out=tmp_path / "fedavg", **SMALL)
    assert result.summary["bytes"]["up"] - plain.summary["bytes"]["up"] == 4 * 3 * 2


def test_a_field_without_description_is_disclosed_as_such(tmp_path: Path) -> None:
    path = tmp_path / "counting.py"
    path.write_text(METHOD.replace("{description}", ""), encoding="utf-8")
    result = comity.run(str(path), out=tmp_path / "run", **SMALL)
    party = result.job.info.names[0]
    page = html.unescape(comity.disclose(result, party)[0].read_text(encoding="utf-8"))
    table = page.split("<tbody>", 1)[1].split("</tbody>", 1)[0]
    (row,) = [row for row in table.split("</tr>") if "(Timed.steps)" in row]
    assert "a value that its method does not describe" in row
    assert "one number" in row
    assert "nothing: it left as it is" in row


PIXELS = """
from comity.algorithms.fedavg import FedAvg
from comity.core import *


@algorithm
class Leaking(FedAvg):
    def round(self, theta, server, t):
        server.call(self.leak, {i: Model(theta) for i in server.sample(t)})
        return super().round(theta, server, t)

    @on_party
    async def leak(self, state: Params, m: Model, party: Party, key: Key) -> tuple[Params, Model]:
        return state, Model({"weight": party.data.train.x[:2]})
"""


def test_samples_that_the_traits_do_not_declare_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "leaking.py"
    path.write_text(PIXELS, encoding="utf-8")
    result = comity.run(str(path), out=tmp_path / "run", **SMALL)
    assert "undeclared samples in Model.theta" in str(result.summary["privacy"])
    party = result.job.info.names[0]
    page = html.unescape(comity.disclose(result, party)[0].read_text(encoding="utf-8"))
    assert (
        "values in the form of training records, although the method declares that parties send"
        " weights of a model" in page
    )
    plain = comity.run("fedavg", out=tmp_path / "fedavg", **SMALL)
    assert "undeclared" not in str(plain.summary["privacy"])


FINISHING = """
from dataclasses import replace

from comity.algorithms.fedavg import FedAvg
from comity.core import *


@record
class Norm:
    value: float = describe(Content("how long the weights are", "weights"))


@algorithm
class Finishing(FedAvg):
    def finish(self, theta: Params, server: Server) -> Params:
        server.call(self.norm, {i: Model(theta) for i in server.info.parties})
        return theta

    @on_party
    async def norm(self, state: Params, m: Model, party: Party, key: Key) -> tuple[Params, Norm]:
        return state, Norm(sum(v.norm().item() for v in m.theta.values()))
"""
DECLARED = "\n    traits = replace(FedAvg.traits, finishes=True)\n"


def test_a_finish_that_the_traits_do_not_declare_is_refused(tmp_path: Path) -> None:
    """It would never be called."""
    path = tmp_path / "finishing.py"
    path.write_text(FINISHING, encoding="utf-8")
    with pytest.raises(comity.UsageError, match=r"Finishing has a method `finish`.*finishes=True"):
        comity.run(str(path), **SMALL)


def test_a_finish_that_the_traits_declare_is_called(tmp_path: Path) -> None:
    path = tmp_path / "finishing.py"
    path.write_text(FINISHING + DECLARED, encoding="utf-8")
    result = comity.run(str(path), out=tmp_path / "run", **SMALL)
    assert [row.call for row in result.ledger].count("norm") == 2 * 3  # down and up, three parties
