"""Commands that are loaded when they are run, and options that may stand before a command as well as behind it.

The table in `oncelog_service.cli` says each command's module and the line that `--help` shows of it. So help, completion and a
command that is misspelt load none of them, and a command loads itself alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from oncelog_service.cli.frame.words import meant

COMMON: Mapping[str, tuple[str, ...]] = {
    "--url": ("-u",),
    "--context": ("-c",),
    "--namespace": ("-N",),
    "--token": (),
    "--ca": (),
    "--cert": (),
    "--cert-key": (),
}
"""Options with a value that say which service a command asks, and their short forms."""
FLAGS: Mapping[str, tuple[str, ...]] = {"--json": ("-j",)}

_WAITING = f"{__name__}:waiting"
"""Where a context says which of them has still to get its value."""

UsageError: type[Any] = typer.BadParameter.__mro__[1]
"""What typer raises for a command line that cannot be understood; it gives no name to it."""


class Offered(NamedTuple):
    """What a shell is offered, as typer reads it; it gives no name to its own."""

    value: str
    type: str = "plain"
    help: str | None = None


class Group(TyperGroup):
    """A group that takes :data:`COMMON` before its command, and hands them on as if they stood behind it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take those in front; the rest as ever."""
        taken, rest = split(args)
        if rest and _option(rest[0]) is not None and not ctx.resilient_parsing:
            raise UsageError(f"{rest[0]} needs a value", ctx)
        ctx.meta[f"{__name__}:{ctx.command_path}"] = taken
        ctx.meta[_WAITING] = (_option(rest[0]) or (None,))[0] if rest else None
        return super().parse_args(ctx, rest)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """What the shell is offered: commands, and options and their values that may stand in front."""
        waiting = ctx.meta.get(_WAITING)
        if waiting is None:
            options = [each for each in (*COMMON, *FLAGS) if incomplete.startswith("-") and each.startswith(incomplete)]
            return [*super().shell_complete(ctx, incomplete), *map(Offered, options)]
        from oncelog_service.cli.frame.completing import in_front

        return [*map(Offered, in_front(ctx.meta.get(f"{__name__}:{ctx.command_path}", []), waiting, incomplete))]

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command, and its arguments with those in front. Raises UsageError where it asks no service."""
        try:
            name, found, rest = super().resolve_command(ctx, args)
        except UsageError as error:
            ours = meant(args[0], self.commands)
            if ours is not None:
                error.message = f"No such command {args[0]!r}. Did you mean {ours!r}?"
            raise
        taken = ctx.meta.get(f"{__name__}:{ctx.command_path}", [])
        found = found.real() if isinstance(found, Later) else found
        if not (ctx.resilient_parsing or found is None or isinstance(found, TyperGroup)):
            known = {option for param in found.params for option in param.opts}
            known -= set() if "--context" in known else set(COMMON)  # a service's own --token is another thing
            for option, _ in taken:
                if option not in known:
                    raise UsageError(f"{option} before {name!r} is of no use, as that takes no such thing from there", ctx)
        return name, found, [*(word for _, words in taken for word in words), *rest]


class Later(TyperCommand):
    """Stands for a command of another module until that is needed."""

    def __init__(self, name: str, module: str, text: str) -> None:
        super().__init__(name, help=text)
        self._module = module

    def real(self) -> Any:
        """The command itself, loaded now."""
        module = import_module(self._module)
        holder = typer.Typer(add_completion=False, rich_markup_mode=None)
        if hasattr(module, "register"):
            module.register(holder)
        else:
            holder.add_typer(module.group, name=self.name)
        found = typer.main.get_group(holder).commands[self.name or ""]
        found.help = found.help or self.help
        return found


def noun(kind: type[Group] = Group) -> typer.Typer:
    """A group of commands; what it is for stands in the table."""
    return typer.Typer(cls=kind, no_args_is_help=True, add_completion=False, rich_markup_mode=None)


def split(args: list[str]) -> tuple[list[tuple[str, list[str]]], list[str]]:
    """The common options in front, each with its words, and the rest. Pure."""
    taken: list[tuple[str, list[str]]] = []
    at = 0
    while at < len(args):
        found = _option(args[at])
        if found is None:
            break
        name, width = found
        if at + width > len(args):
            break  # its value is missing, which is said where it would be used
        taken.append((name, args[at : at + width]))
        at += width
    return taken, args[at:]


def _option(word: str) -> tuple[str, int] | None:
    """Which of the common options that is, and of how many words."""
    for name, shorts in FLAGS.items():
        if word == name or word in shorts:
            return name, 1
    for name, shorts in COMMON.items():
        if word == name or word in shorts:
            return name, 2
        if word.startswith(f"{name}=") or (not word.startswith("--") and word.startswith(shorts)):
            return name, 1
    return None
