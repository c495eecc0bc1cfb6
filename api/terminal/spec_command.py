"""Commands whose options are fields of classes: of specs, and of the models that HTTP and Python read.

A SPEC may be given as words, `prefix --n 2048 --epochs 8 --mechanism banded --bands 4`. An option of a model is stated
once for all doors: name, type, default and help are those of the field. The classes are imported when a command line
names the command; others, and the help of all of them, do without.
"""

from __future__ import annotations

import copy
import glob
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer.core

from factorize.encoding import canonical_json, is_digest
from factorize.errors import InvalidParameter

if TYPE_CHECKING:
    from typer._click.core import Context

    from factorize.plain_data.words import Word

PANEL = "The spec in words: a workload, and"
_WORD = re.compile(r"[A-Za-z][\w-]*", re.ASCII)
_BEGINNING = re.compile("[0-9a-f]{4,63}")
_HELP = {"--help", "-h"}
_OTHER_FLAGS = {"output": "--released"}
"""The options of fields of specs that would be called as an option of all commands."""
_FIELDS = {flag: name for name, flag in _OTHER_FLAGS.items()}


class OnceCommand(typer.core.TyperCommand):
    """A command that refuses an option given twice, of which typer would drop the first value."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """Look for options that are repeated, and parse."""
        said = [] if ctx.resilient_parsing else self.make_parser(ctx).parse_args([*args])[2]
        for one in (one for one in said if said.count(one) > 1 and not (one.multiple or getattr(one, "is_flag", True))):
            raise InvalidParameter(f"{one.opts[0]} is given more than once; give it once", field=one.name)
        return super().parse_args(ctx, args)


class SpecCommand(OnceCommand):
    """A command whose first argument is a SPEC.

    Attributes:
        words: `module:Class` whose fields may be said in words.
    """

    words = "factorize.spec:Spec"
    _listing = False

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put a spec in place of the words that say it, and parse the rest."""
        if _HELP & set(args):
            return super().parse_args(ctx, ["--help"])
        try:
            return super().parse_args(ctx, args if ctx.resilient_parsing else self._with_spec(args))
        except typer.BadParameter as error:
            if getattr(error.param, "name", None) == "output":
                error.message += f" The output of a workload is {_OTHER_FLAGS['output']}."
            raise

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Show the fields of specs too."""
        self._listing = True
        super().format_help(ctx, formatter)

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the command's own parameters, and in help and completion the fields of specs."""
        parameters = super().get_params(ctx)
        if self._listing or ctx.resilient_parsing:
            from factorize.plain_data.words import words_of

            own = {flag: parameter for parameter in parameters for flag in parameter.opts}
            named = (one[0] for one in words_of(_class_at(self.words)).values())
            words = [word for word in named if _word_flag(word.name) not in own]
            parameters = parameters + [_option(own["--store"], word) for word in words]
        return parameters

    def _with_spec(self, args: list[str]) -> list[str]:
        """Return the arguments with the spec as JSON where one is said in words."""
        own = {flag: parameter for parameter in self.params for flag in parameter.opts if flag.startswith("-")}
        taken, left, place = self._take_words(args, own)
        if place is None:
            return args
        empty = next((name for name, value in taken.items() if value is None), None)
        if empty is not None:
            raise InvalidParameter(f"--{empty} needs a value", field=empty)
        from factorize.plain_data.words import document_of_words

        said = document_of_words(_class_at(self.words), taken)
        return [*left[:place], canonical_json(said).decode(), *left[place:]]

    def _take_words(self, args: list[str], own: dict[str, Any]) -> tuple[dict[str, str | None], list[str], int | None]:
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
                    if _WORD.fullmatch(text) and not is_name(text):
                        taken["workload"], place = text, len(left)
                        continue
                left.append(text)
                if flag in own and not equals and not own[flag].is_flag:
                    left += [value for value in [next(rest, None)] if value is not None]
            else:
                name = _FIELDS.get(flag, flag[2:].replace("-", "_"))
                if name in taken:
                    raise InvalidParameter(f"{flag} is given more than once; give it once", field=name)
                taken[name] = value if equals else next(rest, None)
        if place is not None and len(taken) == 1 and _is_readable(taken["workload"] or ""):
            return {}, left, None
        return taken, left, len(left) if taken and not said else place


def is_name(text: str) -> bool:
    """Return whether a text is a digest, or the beginning of one: four hexadecimal digits or more, and no file."""
    return is_digest(text) or (_BEGINNING.fullmatch(text) is not None and not Path(text).exists())


def _is_readable(text: str) -> bool:
    """Return whether a word without fields is a file; a folder may have the name of a workload."""
    return Path(text).exists() and not Path(text).is_dir()


def _class_at(place: str) -> Any:
    """Return a class by `module:Class`."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def complete_spec(incomplete: str) -> list[str]:
    """Return the workloads and the files that begin so."""
    from factorize.plain_data.fields import fields_of, kinds_in
    from factorize.spec import Spec

    kinds = [kind for kind in kinds_in(fields_of(Spec)["workload"].annotation) if kind.startswith(incomplete)]
    folder, start = Path(incomplete).parent, Path(incomplete).name
    files = sorted(path for path in folder.glob(f"{glob.escape(start)}*") if not path.name.startswith("."))
    return kinds + [f"{path}/" if path.is_dir() else str(path) for path in files]


def _option(pattern: Any, word: Word) -> Any:
    """Return the option of a word: another option with its name, help and completion."""
    from typer._click.shell_completion import CompletionItem

    from factorize.plain_data.fields import literals_in, takes_numbers

    option = copy.copy(pattern)
    option.name, option.opts, option.rich_help_panel = word.name, [_word_flag(word.name)], PANEL
    values = word.parts or tuple(dict.fromkeys(text for one in word.annotations for text in literals_in(one)))
    option.metavar = "KIND" if word.parts else "VALUE"
    owner = ".".join(word.path) or "the spec"
    number = any(takes_numbers(one) for one in word.annotations)
    option.help = ("A number, or " if number else "One of ") + f"{', '.join(values)}." if values else ""
    if not word.parts:
        kinds = f" {', '.join(word.kinds)}" if word.kinds else ""
        option.help = f"Of {owner}{kinds}. {option.help}".strip()
    complete = [CompletionItem(value) for value in values]
    option.shell_complete = lambda _, start: [item for item in complete if item.value.startswith(start)]
    return option


Function = TypeVar("Function", bound=Callable[..., Any])
_TYPES: Mapping[str, type] = {"number": float, "integer": int}


def options_of(
    *models: Any,
    names: Sequence[str] = (),
    but: Sequence[str] = (),
    flags: Mapping[str, str] = MappingProxyType({}),
    kind: type | None = None,
) -> Callable[[Function], Function]:
    """Give a command options; its argument `fields` gets the values of those that were given, by field.

    Args:
        *models: pydantic models, whose fields are taken in their order.
        names: names of the fields that are taken; all by default.
        but: fields that are not.
        flags: flags of options that are not called as their fields.
        kind: type of all values, where the command reads texts itself.
    """

    def parameters() -> list[inspect.Parameter]:
        options: dict[str, inspect.Parameter] = {}
        for model in models:
            schemas, own = model.model_json_schema()["properties"], model.__annotations__
            for field in sorted(schemas, key=lambda name: name not in own):  # a model's own fields come first
                if (field in names or not names) and field not in but and field not in options:
                    annotation = _annotation(flags.get(field, _flag(field)), schemas[field], _about(model, field), kind)
                    keyword = inspect.Parameter.KEYWORD_ONLY
                    options[field] = inspect.Parameter(field, keyword, default=None, annotation=annotation)
        return list(options.values())

    def marked(function: Function) -> Function:
        function.options = parameters  # type: ignore[attr-defined]
        return function

    return marked


def _annotation(flag: str, schema: Mapping[str, Any], about: str, kind: type | None) -> object:
    """Return the type of an option's value, with its description."""
    shape = next(one for one in schema.get("anyOf", [schema]) if one.get("type") != "null")
    several = shape.get("type") == "array" and "enum" in shape["items"]
    one, default = shape["items"] if several else shape, schema.get("default")
    of = str if several else kind or _TYPES.get(one.get("type"), str)
    metavar = "|".join(one.get("enum", ())) or ("NUMBER" if kind is str else None)
    shown = ",".join(map(str, default)) if isinstance(default, list) else "" if default is None else str(default)
    about += " May be given again." if several else ""
    option = typer.Option(flag, help=about, metavar=metavar, show_default=shown or False)
    return Annotated[list[of] | None if several else of | None, option]  # type: ignore[valid-type]


def _about(model: Any, field: str) -> str:
    """Return what a model says of its field, in the words of a command line."""
    fields = model.model_fields
    text = fields[field].description.replace("\n", " ")
    return re.sub(r"`(\w+)`", lambda word: _flag(word[1]) if word[1] in fields else word[1], text)


def _word_flag(name: str) -> str:
    return _OTHER_FLAGS.get(name, _flag(name))


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
