"""`comity --show-completion bash`: Tab completes commands, options and names without starting
Python.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from harness import comity, one_sentence, succeed

ASK = """
source {script}
comity() {{ echo "a Tab must start nothing" >&2; }}
COMP_WORDS=({words})
COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))
_comity
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "comity.bash"
    path.write_text(succeed("--show-completion", "bash").out)
    return path


def complete(script: Path, words: str) -> set[str]:
    """The completions that Tab offers after these words."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash here")
    command = [bash, "--norc", "-c", ASK.format(script=script, words=words)]
    result = subprocess.run(
        command, capture_output=True, text=True, timeout=20, check=True, cwd=script.parent
    )
    assert not result.stderr
    return set(result.stdout.split())


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("comity co", {"compare"}),
        ("comity run fedav", {"fedavg"}),
        ("comity compare fedavg scaf", {"scaffold"}),
        ("comity run fedavg --da", {"--data"}),
        ("comity run fedavg --data fash", {"fashion-mnist"}),
        ("comity run fedavg --model len", {"lenet5"}),
        ("comity run fedavg --engine st", {"stacked"}),
        ("comity run fedavg --metric bal", {"balanced_accuracy"}),
        ("comity list da", {"datasets"}),
        ("comity data insp", {"inspect"}),
        ("comity data inspect --data hea", {"heart"}),
        ("comity report comi", {"comity.bash"}),
        ("comity reproduce dbe/ --scale sm", {"smoke"}),
    ],
)
def test_bash(words: str, expected: set[str], script: Path) -> None:
    assert complete(script, words) == expected


def test_fish_and_zsh_have_the_same_words(script: Path) -> None:
    zsh = succeed("--show-completion", "zsh").out
    assert zsh.endswith(script.read_text())
    assert "bashcompinit" in zsh
    fish = succeed("--show-completion", "fish").out
    assert "__fish_seen_subcommand_from run' -l data -x -a 'digits" in fish
    for shell, text in (("zsh", zsh), ("fish", fish)):
        if path := shutil.which(shell):
            subprocess.run(
                [path, "-n", "/dev/stdin"], input=text, text=True, check=True, timeout=20
            )


def test_an_unknown_shell() -> None:
    assert "Known: bash, fish, zsh" in one_sentence(comity("--show-completion", "tcsh"), 2)
