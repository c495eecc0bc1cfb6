"""Spec command: a command whose SPEC may be given as words, `prefix --n 2048 --epochs 8 --mechanism banded --bands 4`.

The options are read from the spec's classes when a command line has such words, and for the command's own help and
completion; nothing else imports them.
"""

from __future__ import annotations

import copy
import glob
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer.core

from factorize.api.terminal.sources import is_name
from factorize.errors import InvalidParameter

if TYPE_CHECKING:
    from factorize.plain_data.words import Word

PANEL = "The spec in words: a workload, and"
_WORD = re.compile(r"[a-z][a-z0-9_]*")
_HELP = {"--help", "-h"}


class SpecCommand(typer.core.TyperCommand):
    """A command whose first argument is a SPEC."""

    _listing = False

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put a spec in place of the words that say it, and parse the rest."""
        if _HELP & set(args):
            return super().parse_args(ctx, ["--help"])
        return super().parse_args(ctx, args if ctx.resilient_parsing else self._with_spec(args))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Show the fields of specs too."""
        self._listing = True
        super().format_help(ctx, formatter)

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the command's own parameters, and in help and completion the fields of specs."""
        found = super().get_params(ctx)
        if self._listing or ctx.resilient_parsing:
            own = {flag: parameter for parameter in found for flag in parameter.opts}
            found = found + [_option(own["--store"], word) for word in _words() if _flag(word) not in own]
        return found

    def _with_spec(self, args: list[str]) -> list[str]:
        """Return the arguments with the spec as JSON where one is said in words."""
        own = {flag: parameter for parameter in self.params for flag in parameter.opts if flag.startswith("-")}
        taken, left, place = self._taken(args, own)
        if place is None:
            return args
        empty = next((name for name, value in taken.items() if value is None), None)
        if empty is not None:
            raise InvalidParameter(f"--{empty} needs a value", field=empty)
        from factorize.encoding import canonical_json
        from factorize.plain_data.words import document_of_words
        from factorize.spec import Spec

        return [*left[:place], canonical_json(document_of_words(Spec, taken)).decode(), *left[place:]]

    def _taken(self, args: list[str], own: dict[str, Any]) -> tuple[dict[str, str | None], list[str], int | None]:
        """Return the words by name, the other arguments, and where among these the spec belongs; None without words."""
        taken: dict[str, str | None] = {}
        left: list[str] = []
        place: int | None = None
        said = False
        rest = iter(args)
        for text in rest:
            flag, equals, value = text.partition("=")
            if flag in own or not text.startswith("--"):
                if flag not in own and not said:
                    said = True
                    if _is_word(text):
                        taken["workload"], place = text, len(left)
                        continue
                left.append(text)
                if flag in own and not equals and not own[flag].is_flag:
                    left += [value for value in [next(rest, None)] if value is not None]
            else:
                taken[flag[2:].replace("-", "_")] = value if equals else next(rest, None)
        return taken, left, len(left) if taken and not said else place


def complete_spec(incomplete: str) -> list[str]:
    """Return the workloads and the files that begin so."""
    from factorize.plain_data.fields import fields_of, kinds_in
    from factorize.spec import Spec

    kinds = [kind for kind in kinds_in(fields_of(Spec)["workload"].annotation) if kind.startswith(incomplete)]
    folder, start = Path(incomplete).parent, Path(incomplete).name
    files = sorted(path for path in folder.glob(f"{glob.escape(start)}*") if not path.name.startswith("."))
    return kinds + [f"{path}/" if path.is_dir() else str(path) for path in files]


def _words() -> list[Word]:
    """Return what may be given, each name once."""
    from factorize.plain_data.words import words_of
    from factorize.spec import Spec

    return [words[0] for words in words_of(Spec).values()]


def _flag(word: Word) -> str:
    return "--" + word.name.replace("_", "-")


def _option(pattern: Any, word: Word) -> Any:
    """Return the option of a word: another option with its name, help and completion."""
    from factorize.plain_data.fields import literals_in, takes_numbers

    option = copy.copy(pattern)
    option.name, option.opts, option.rich_help_panel = word.name, [_flag(word)], PANEL
    values = word.parts or tuple(dict.fromkeys(text for one in word.annotations for text in literals_in(one)))
    option.metavar = "KIND" if word.parts else "VALUE"
    owner = ".".join(word.path) or "the spec"
    number = any(takes_numbers(one) for one in word.annotations)
    option.help = ("A number, or " if number else "One of ") + f"{', '.join(values)}." if values else ""
    if not word.parts:
        kinds = f" {', '.join(word.kinds)}" if word.kinds else ""
        option.help = f"Of {owner}{kinds}. {option.help}".strip()
    complete = [_completion(value) for value in values]
    option.shell_complete = lambda _, start: [item for item in complete if item.value.startswith(start)]
    return option


def _completion(value: str) -> Any:
    from typer._click.shell_completion import CompletionItem

    return CompletionItem(value)


def _is_word(text: str) -> bool:
    return _WORD.fullmatch(text) is not None and not is_name(text) and not Path(text).exists()
