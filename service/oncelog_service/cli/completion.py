"""`oncelog completion`: what has a shell complete commands, options and names."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from oncelog_service.cli.frame.completing import VARIABLE
from oncelog_service.cli.output import Output
from oncelog_service.cli.session import Json

# Bash cuts words at : and = too, of which addresses and names of producers are full. So the line is handed over as it is, and of
# what comes back the part is left out that stands there already.
_BASH = """\
_oncelog_completion() {
    local line="${COMP_LINE:0:COMP_POINT}" words last at
    read -ra words <<< "$line"
    at=$(( ${#words[@]} - 1 ))
    [[ "$line" == *[[:space:]] ]] && at=$(( at + 1 ))
    last="${words[$at]-}"
    local IFS=$'\\n'
    COMPREPLY=( $(env COMP_WORDS="$line" COMP_CWORD="$at" VARIABLE=complete_bash "$1" 2>/dev/null) )
    [[ "$last" == *[:=]* ]] && COMPREPLY=( "${COMPREPLY[@]#"${last%"${last##*[:=]}"}"}" )
    return 0
}
complete -o default -F _oncelog_completion oncelog
"""


class Shell(StrEnum):
    """The shells that there are scripts for."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("completion")(completion)


def completion(
    shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="bash, zsh or fish.", show_default=False)], as_json: Json = False
) -> None:
    """Print what has the shell complete commands, options, and names of topics, producers, subscriptions and contexts."""
    text = script(shell).rstrip("\n")
    Output(as_json).result({"shell": shell, "script": text}, text)


def script(shell: Shell) -> str:
    """What the shell is to read when it begins."""
    if shell is Shell.BASH:
        return _BASH.replace("VARIABLE", VARIABLE)
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    return str(get_completion_script(prog_name="oncelog", complete_var=VARIABLE, shell=shell))
