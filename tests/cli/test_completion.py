"""Shell completion, run by the shells that are installed."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import time

import pytest

from pmpguard.cli.completion import bash_script, completion, fish_script, quoted

OPTIONS = {
    "train": ["--dataset", "--train.method", "--json"],
    "data check": ["--workers"],
    "data stats": ["--images"],
    "corrupt": ["--seed"],
    "corrupt import": ["--format"],
}
ASK = """
complete_words() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _pmpguard; echo "${COMPREPLY[*]}"; }
complete_words %s
"""


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("pmpguard tr", "train"),
        ("pmpguard data ch", "check"),
        ("pmpguard train --train.m", "--train.method"),
        ("pmpguard data check --w", "--workers"),
        ("pmpguard corrupt --s", "--seed"),
        ("pmpguard corrupt imp", "import"),
        ("pmpguard corrupt import --f", "--format"),
        ("pmpguard nonsense --f", ""),
    ],
)
def test_bash_completes(typed, offered, tmp_path):
    if shutil.which("bash") is None:
        pytest.skip("no bash here")
    code = bash_script(OPTIONS) + ASK % typed
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.strip() == offered


def test_bash_offers_files_where_no_option_begins(tmp_path):
    if shutil.which("bash") is None:
        pytest.skip("no bash here")
    (tmp_path / "pairs.jsonl").touch()
    code = bash_script(OPTIONS) + ASK % "pmpguard train pai"
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.strip() == "pairs.jsonl"


TYPED = [
    ("pmpguard trai", "pmpguard train"),
    ("pmpguard data ch", "pmpguard data check"),
    ("pmpguard train --train.metho", "pmpguard train --train.method"),
    ("pmpguard corrupt imp", "pmpguard corrupt import"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("typed", "completed"), TYPED)
def test_zsh_completes_on_the_tab_key(typed, completed, tmp_path):
    if shutil.which("zsh") is None:
        pytest.skip("no zsh here")
    (tmp_path / "script").write_text(completion("zsh"))
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(tmp_path)
        os.execvpe("zsh", ["zsh", "-f", "-i"], {"PATH": os.environ["PATH"], "TERM": "dumb", "PS1": "> "})
    deadline, said = time.monotonic() + 60, ""

    def read_until(wanted: str) -> None:
        nonlocal said
        while wanted not in said:
            assert time.monotonic() < deadline, said
            if select.select([terminal], [], [], 0.1)[0]:
                said += os.read(terminal, 65536).decode(errors="replace")

    os.write(terminal, b"autoload -U compinit && compinit -u; source script; echo REA''DY\n")
    read_until("READY\r")
    os.write(terminal, f"{typed}\t".encode())
    read_until(completed)
    os.close(terminal)
    os.waitpid(child, 0)


@pytest.mark.slow
def test_fish_completes(tmp_path):
    if shutil.which("fish") is None:
        pytest.skip("no fish here")
    (tmp_path / "script").write_text(completion("fish"))
    asked = "; ".join(f'complete -C "{typed}"' for typed, _ in TYPED)
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    done = subprocess.run(
        ["fish", "-c", f"source script; {asked}"],
        capture_output=True, text=True, check=True, cwd=tmp_path, env=environment,
    )  # fmt: skip
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == [
        whole.split()[-1] for _, whole in TYPED
    ]


def test_the_scripts_name_every_verb_of_the_command_line():
    for shell in ("bash", "zsh", "fish"):
        script = completion(shell)
        assert "train.method" in script and "completion" in script
    assert completion("zsh").startswith("# eval") and "bashcompinit" in completion("zsh")


def test_fish_lines():
    script = fish_script(dict.fromkeys(OPTIONS, "what it's for"), OPTIONS)
    assert "-n __fish_use_subcommand -a train -d 'what it\\'s for'" in script
    assert "-n '__fish_seen_subcommand_from data; and __fish_seen_subcommand_from check' -l workers" in script
    assert quoted("a'b\\") == "'a\\'b\\\\'"
