"""Messages for authors of methods: they name the author's line, and say what to write instead."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import OWN, SMALL, comity, complaint, one_sentence

VECTOR = """\
async def train_locally(self, theta, m, party, key):
        return (await party.fit(self.loss, theta, key)).theta

    def loss(self, task, theta, batch, aux):
        return (task.logits(theta, batch.x) ** 2).sum(1)
"""
NOTHING = VECTOR.replace("return (task.logits(theta, batch.x) ** 2).sum(1)", "pass")
ON_SELF = """\
async def train_locally(self, theta, m, party, key):
        self.last = theta
        return await super().train_locally(theta, m, party, key)
"""


def failure(tmp_path: Path, name: str, body: str, *more: object) -> str:
    """The message of a run of a user's method that fails."""
    file = tmp_path / f"{name}.py"
    file.write_text(OWN.format(body), encoding="utf-8")
    return complaint(comity("run", file, *SMALL, "--out", tmp_path / "out", *more), 1)


@pytest.mark.parametrize("engine", ["loop", "stacked", "process"])
def test_loss_that_returns_a_vector(engine: str, tmp_path: Path) -> None:
    message = failure(tmp_path, f"vector_{engine}", VECTOR, "--engine", engine)
    assert (
        f"loss (vector_{engine}.py:15) must return one number, but returned a tensor of shape [10]:"
        " return its mean." in message
    )
    assert "esume" not in message


def test_loss_that_returns_nothing(tmp_path: Path) -> None:
    message = failure(tmp_path, "nothing", NOTHING)
    assert "loss (nothing.py:15) must return a tensor of one number, but returned None." in message


WITHOUT_THETA = """\
async def train_locally(self, theta, m, party, key):
        return await party.fit(plain, theta, key)
"""
OF_RESULT = """\
async def train_locally(self, theta, m, party, key):
        trained = await party.fit(plain, theta, key)
        return {name: w / 2 for name, w in trained.items()}
"""


@pytest.mark.parametrize("engine", ["loop", "stacked", "process"])
def test_result_of_a_training_in_place_of_its_weights(engine: str, tmp_path: Path) -> None:
    message = failure(tmp_path, f"untaken_{engine}", WITHOUT_THETA, "--engine", engine)
    assert (
        f"train_locally (untaken_{engine}.py:12) must return weights: write (await"
        " party.fit(...)).theta." in message
    )


def test_attribute_of_weights_asked_of_the_result_of_a_training(tmp_path: Path) -> None:
    message = failure(tmp_path, "of_result", OF_RESULT)
    assert "train_locally (of_result.py:14)" in message
    assert "has no 'items': for its weights, write (await party.fit(...)).theta" in message


@pytest.mark.parametrize("engine", ["loop", "stacked", "process"])
def test_state_on_self(engine: str, tmp_path: Path) -> None:
    message = failure(tmp_path, f"on_self_{engine}", ON_SELF, "--engine", engine)
    assert f"FrozenInstanceError in train_locally (on_self_{engine}.py:13)" in message
    assert "belongs in the server's state or a party's state" in message
    assert "esume" not in message


def test_option_of_several_types_says_what_it_can_be() -> None:
    message = one_sentence(comity("run", "fedavg+dbe", "--set", "kappa=high"), 2)
    assert message == "comity: kappa of dbe must be a number, paper or auto, not 'high'."


def test_folder_that_cannot_be_created() -> None:
    message = one_sentence(comity("run", "fedavg", *SMALL, "--out", "/proc/x"), 2)
    assert "/proc/x cannot be created (" in message
    assert "choose another --out" in message


def test_setting_in_brackets_is_named_as_one() -> None:
    message = one_sentence(comity("run", "fedper(lr=0.1)"), 2)
    assert "lr is no option of fedper, but a setting of the run: --lr 0.1." in message


def test_method_without_a_part_is_told_which(tmp_path: Path) -> None:
    file = tmp_path / "partly.py"
    source = OWN.format("pass").replace("(FedAvg)", "(AveragedModel[Params])")
    source = source.replace("import FedAvg", "import AveragedModel")
    file.write_text(source, encoding="utf-8")
    message = one_sentence(comity("run", file, *SMALL), 2)
    assert "cannot be built: " in message
    assert "newcomer_state (The state of a newcomer whose warm-up ended at `theta`)" in message
