"""The deploy page agrees with the commands, the site policy and the files for containers and
systemd. None of these runs here.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import fields
from pathlib import Path

import pytest
import yaml
from document_commands import check_command

from comity.core.traits import LEAVES
from comity.deploy.policy import SitePolicy

ROOT = Path(__file__).parents[2]
POLICY = (ROOT / "docs" / "reference" / "site-policy.md").read_text(encoding="utf-8")
UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))


def commands(text: str) -> list[list[str]]:
    """The commands in a text, without `comity`."""
    lines = re.findall(r"^(?:docker compose exec hub )?comity (.*)$", text, flags=re.MULTILINE)
    lines += re.findall(r"^docker compose run (?:--\S+ )*\w+ (.*)$", text, flags=re.MULTILINE)
    return [shlex.split(line, comments=True) for line in lines]


@pytest.mark.parametrize(
    "page", ["how-to/deploy.md", "how-to/commands.md", "tutorials/real-sites.md"]
)
def test_commands_exist(page: str) -> None:
    fenced = re.findall(
        r"```(?:text|sh)?\n(.*?)```",
        (ROOT / "docs" / page).read_text(encoding="utf-8"),
        flags=re.DOTALL,
    )
    commands_on_page = [words for block in fenced for words in commands(block)]
    assert sum(words[0] == "deploy" for words in commands_on_page) >= 7
    for words in commands_on_page:
        if not words[0].startswith("--"):  # options of `comity` itself
            check_command(words)


def test_every_rule_of_a_site_policy_is_explained() -> None:
    table = POLICY.split("\n## ")[0]
    rules = {
        name.replace("budget.", "budget_")
        for name in re.findall(
            r"`([\w.]+)`", "".join(re.findall(r"^\| (.*?) \|", table, re.MULTILINE))
        )
    }
    assert rules == {field.name for field in fields(SitePolicy)}
    assert all(kind in table for kind in LEAVES)


def test_defaults_of_a_site_policy_are_those_on_the_page() -> None:
    table = POLICY
    rows = dict(re.findall(r"^\| `([\w.]+)` \| (.*?) \|", table, flags=re.MULTILINE))
    policy = SitePolicy("north", Path())
    assert {name: rows[name] for name in ("rounds", "records")} == {
        "rounds": str(policy.rounds),
        "records": str(policy.records),
    }
    assert rows["never"] == f"`{list(policy.never)}`".replace("'", '"')
    assert [rows[name] for name in ("export", "outcomes")] == ["`true`", "`false`"]
    assert [policy.export, policy.outcomes] == [True, False]
    assert rows["kinds"] == f"`{list(policy.kinds)}`".replace("'", '"')
    assert [rows["bytes"], rows["message"], rows["budget.bytes"]] == ["10 GB", "1 GB", "100 GB"]
    assert [policy.bytes, policy.message, policy.budget_bytes] == [10 * 10**9, 10**9, 100 * 10**9]


def test_containers_run_a_server_and_three_sites() -> None:
    services = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))["services"]
    for name, service in services.items():
        check_command(list(service["command"]))
        assert service["command"] == ["deploy", "serve" if name == "hub" else "start", name]
        assert service["volumes"] == [f"./compose/{name}:/work"]
        assert "sites" in service["build"]["args"]["EXTRAS"].split(",")
        assert service["read_only"] is True
    assert len(services) == 4


def test_units_run_a_server_and_a_site() -> None:
    assert len(UNITS) == 2
    for unit in UNITS:
        lines = unit.read_text(encoding="utf-8").splitlines()
        (start,) = [
            line.removeprefix("ExecStart=/opt/comity/bin/comity ").split()
            for line in lines
            if line.startswith("ExecStart=")
        ]
        check_command(list(start))
        assert {"NoNewPrivileges=yes", "ProtectSystem=strict", "Restart=on-failure"} <= set(lines)
        assert f"ReadWritePaths=/srv/comity/{start[-1]}" in lines
