"""Print a completion script for verbs, flags and names: eval "$(anyformer completion bash)" in ~/.bashrc, the same
with zsh in ~/.zshrc; anyformer completion fish > ~/.config/fish/completions/anyformer.fish"""

from __future__ import annotations

import argparse

from anyformer.cli import verb_module, verb_parser, verbs
from anyformer.specs.messages import nearest

SHELLS = ("bash", "zsh", "fish")

BASH = """_anyformer() {{
    local words current="${{COMP_WORDS[COMP_CWORD]}}"
    if [ "$COMP_CWORD" -eq 1 ]; then words="{verbs}"; else
        case "${{COMP_WORDS[1]}}" in
{cases}
        esac
    fi
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _anyformer anyformer"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", metavar="SHELL", help=", ".join(SHELLS))


def run(options: argparse.Namespace) -> None:
    if options.shell not in SHELLS:
        raise ValueError(f"no shell {options.shell!r}; {nearest(options.shell, SHELLS)}")
    print(fish() if options.shell == "fish" else bash(options.shell == "zsh"))


def bash(zsh: bool) -> str:
    cases = "\n".join(f'            {verb}) words="{" ".join(words_of(verb))}" ;;' for verb in verbs())
    script = BASH.format(verbs=" ".join(verbs()), cases=cases)
    return f"autoload -U +X bashcompinit && bashcompinit\n{script}" if zsh else script


def fish() -> str:
    lines = ["complete -c anyformer -n __fish_use_subcommand -f"]
    for verb, about in verbs().items():
        lines.append(f'complete -c anyformer -n __fish_use_subcommand -a {verb} -d "{about}"')
        lines.append(f'complete -c anyformer -n "__fish_seen_subcommand_from {verb}" -a "{" ".join(words_of(verb))}"')
    return "\n".join(lines)


def words_of(verb: str) -> list[str]:
    """Return the words that may follow a verb: its flags and names. Nothing here imports torch."""
    module = verb_module(verb)
    if "words" in vars(module):
        return module.words()
    if verb == "run":
        return [*module.TASKS, *{flag: None for task in module.TASKS for flag in module.parser_of(task).flags()}]
    if verb == "lab":
        from anyformer.lab.registry import experiments

        flags = {flag: None for action in module.ACTIONS for flag in module.parser_of(action).flags()}
        return [*module.ACTIONS, *experiments(), *flags]
    return [*names_of(verb), *verb_parser(verb).flags()]


def names_of(verb: str) -> list[str]:
    if verb in ("train", "fetch"):
        from anyformer.recipes import recipes

        return [*recipes()]
    if verb in ("count", "draw"):
        from anyformer.cli.listing import read_rows

        return [row["name"] for row in read_rows()]
    return [*SHELLS] if verb == "completion" else []
