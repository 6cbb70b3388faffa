"""`pmpguard completion`: what a shell needs to complete commands and options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from pmpguard.cli.options import verb_options

BASH = """\
# eval "$(pmpguard completion bash)", for example in ~/.bashrc
_pmpguard() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" first="${{COMP_WORDS[1]}}" verb known
  verb="$first"
  case "$first ${{COMP_WORDS[2]}}" in
    {doubles}) [ "$COMP_CWORD" -gt 2 ] && verb="$first ${{COMP_WORDS[2]}}" ;;
  esac
  if [ "$COMP_CWORD" -eq 1 ]; then known="{firsts}"; else
    case "$verb" in
{cases}
    esac
  fi
  COMPREPLY=($(compgen -W "$known" -- "$word"))
  [[ "$word" == -* || "$COMP_CWORD" -eq 1 ]] || COMPREPLY+=($(compgen -f -- "$word"))
}}
complete -o filenames -F _pmpguard pmpguard
"""
ZSH = """\
# eval "$(pmpguard completion zsh)", for example in ~/.zshrc
autoload -U +X bashcompinit && bashcompinit
"""
Shell = Literal["bash", "zsh", "fish"]


def completion(shell: Shell) -> str:
    """Print a script that completes commands and options in a shell.

    Args:
        shell: which shell: bash, zsh or fish.
    """
    from pmpguard.cli.main import VERBS

    options = {verb: options_of(*VERBS[verb][:2]) for verb in VERBS}
    if shell == "fish":
        return fish_script({verb: VERBS[verb][2] for verb in VERBS}, options)
    return (ZSH if shell == "zsh" else "") + bash_script(options)


def options_of(module: str, function: str) -> list[str]:
    """Every option of a verb, with its dashes."""
    names = [f"--{action.dest}" for action in verb_options(module, function) if action.option_strings]
    return [*names, "--config", "--json", "--allow-outside", "--help", "--help-all"]


def bash_script(options: Mapping[str, Sequence[str]]) -> str:
    """A completion function for bash; zsh reads it, too."""
    firsts = list(dict.fromkeys(verb.split()[0] for verb in options))
    seconds = {
        first: [verb.split()[1] for verb in options if verb.startswith(f"{first} ")] for first in firsts
    }
    cases = {verb: [*seconds.get(verb, []), *names] for verb, names in options.items()}
    cases |= {first: words for first, words in seconds.items() if words and first not in options}
    lines = [f'      "{verb}") known="{" ".join(words)}" ;;' for verb, words in cases.items()]
    doubles = " | ".join(f'"{verb}"' for verb in options if " " in verb)
    return BASH.format(doubles=doubles, firsts=" ".join(firsts), cases="\n".join(lines))


def fish_script(about: Mapping[str, str], options: Mapping[str, Sequence[str]]) -> str:
    """One `complete` line for every command and every option."""
    lines = ["# pmpguard completion fish | source, for example in ~/.config/fish/config.fish"]
    for first in dict.fromkeys(verb.split()[0] for verb in about):
        said = about.get(first, ", ".join(verb for verb in about if verb.startswith(f"{first} ")))
        lines.append(f"complete -c pmpguard -n __fish_use_subcommand -a {first} -d {quoted(said)}")
    for verb, names in options.items():
        words = verb.split()
        if len(words) == 2:
            lines.append(
                f"complete -c pmpguard -n '__fish_seen_subcommand_from {words[0]}' -a {words[1]} "
                f"-d {quoted(about[verb])}"
            )
        seen = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in words)
        lines += [f"complete -c pmpguard -n '{seen}' -l {name[2:]}" for name in names]
    return "\n".join([*lines, ""])


def quoted(text: str) -> str:
    """In single quotes, for fish."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
