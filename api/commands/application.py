"""The application: all commands under one name, and the end of each as an exit code.

An expected error is a sentence on stderr (or a JSON document on stdout with `--output json`), never a traceback.
"""

import ast
import itertools
from functools import cache
from importlib import import_module
from importlib.resources import files
from typing import Annotated, Any

import typer.core
import typer.main

from factorize import __version__
from factorize.api.terminal.output import Commands, ExitCode, OutputForm, VerificationFailed, emit, failure_of, remark
from factorize.api.terminal.spec_command import SpecCommand
from factorize.encoding import in_one_line
from factorize.errors import FactorizeError, extras_named

NAME = "factorize"
COMMANDS: dict[str, str] = {
    "solve": "solve",
    "estimate": "solve",
    "batch": "batch",
    "compare": "recommend",
    "recommend": "recommend",
    "add": "solve",
    "ls": "stored_results",
    "show": "stored_results",
    "get": "exports",
    "mirror": "exports",
    "sign": "exports",
    "receipt": "receipt_command",
    "verify": "verify",
    "plot": "exports",
    "calibrate": "calibrate",
    "profile": "calibrate",
    "predict": "calibrate",
    "serve": "serve",
    "worker": "serve",
    "fsck": "serve",
    "gc": "serve",
    "revoke": "serve",
    "spec": "solve",
    "jobs": "administration",
    "keys": "administration",
    "audit": "serve",
}
"""The commands and groups by name, in the order of the list of all: the module that has them."""
SPEC_COMMANDS = ("solve", "estimate", "compare", "recommend", "get")
"""The commands whose first argument is a spec, which may be said in words."""


def command_of(name: str) -> Any:
    """Return a command, or a group of them; its module is imported here."""
    made = getattr(import_module(f"factorize.api.commands.{COMMANDS[name]}"), name)
    alone = Commands(pretty_exceptions_enable=False)
    if isinstance(made, typer.Typer):
        alone.add_typer(made)
    else:
        words = {"words": "factorize.api.questions.optimizer:JobInWords"} if name == "recommend" else {}
        alone.command(cls=type("Command", (SpecCommand,), words) if name in SPEC_COMMANDS else None)(made)
    return typer.main.get_group(alone).commands[name]


def line_of(name: str) -> str:
    """Return what the list of all says of a command: its docstring's first sentence, read without an import."""
    for node in _parsed(COMMANDS[name]).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name and isinstance(node.value, ast.Call):
            return str(next(ast.literal_eval(one.value) for one in node.value.keywords if one.arg == "help"))
    raise LookupError(name)


@cache
def _parsed(module: str) -> ast.Module:
    return ast.parse(files("factorize.api.commands").joinpath(f"{module}.py").read_text(encoding="utf-8"))


class ByName(typer.core.TyperGroup):
    """The group of all commands, whose modules are imported when a command line names them."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands; each has its line of help by now."""
        for name, command in self.commands.items():
            command.help = line_of(name)
        return super().list_commands(ctx)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the command that is named, in place of its line in the list."""
        name, listed, rest = super().resolve_command(ctx, args)
        return name, command_of(name) if name in COMMANDS else listed, rest


app = typer.Typer(
    cls=ByName,
    name=NAME,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"{NAME} {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Certified matrix factorizations for private training with correlated noise.

    Exit codes: 0 ok, 2 usage or a bad spec, 3 a solve failed, 4 verification failed, 5 service unreachable, 6 a
    stated claim was not looked at (verify), 130 interrupted.
    """


for _name in COMMANDS:
    app.command(_name)(lambda: None)


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code.

    Args:
        arguments: those of the command line, without the program's name.
    """
    form = _output_form(arguments)
    try:
        with extras_named("this command"):
            return int(app(args=arguments, prog_name=NAME, standalone_mode=False) or ExitCode.OK)
    except (FactorizeError, VerificationFailed, OSError) as error:
        return _fail(form, *failure_of(error))
    except MemoryError as error:
        text = f"out of memory: {str(error) or 'an allocation was refused'}; use a smaller n or a structured mechanism"
        return _fail(form, ExitCode.SOLVE_FAILED, {"type": "out-of-memory", "detail": text}, [text])
    except typer.TyperException as error:
        return _usage(form, error)
    except typer.Abort as end:
        if isinstance(end.__cause__, EOFError):  # nobody asks for input here: a file or a stream that was cut off
            raise end.__cause__ from None
        return ExitCode.INTERRUPTED
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except SystemExit as end:
        if not isinstance(end.__context__, BrokenPipeError):  # of a server that could not start, say
            raise
        return ExitCode.BROKEN_PIPE  # of typer, once whoever read its help has gone


def _output_form(arguments: list[str]) -> OutputForm:
    """Find `--output json` before anything is parsed, so that a usage error can be told in that form too."""
    pairs = itertools.pairwise([*arguments, ""])
    wanted = any(a == "--output=json" or (a, b) == ("--output", "json") for a, b in pairs)
    return OutputForm.JSON if wanted else OutputForm.TEXT


def _usage(form: OutputForm, error: Any) -> int:
    """Report what the parser refused."""
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        remark(error.format_message())
        return ExitCode.USAGE
    path = context.command_path if context else NAME
    lines = [" ".join(error.format_message().split()), f"`{path} --help` lists commands and options"]
    return _fail(form, ExitCode.USAGE, {"type": "usage", "detail": "; ".join(lines)}, lines)


def _fail(form: OutputForm, code: ExitCode, document: dict[str, object], lines: list[str]) -> int:
    if form is OutputForm.JSON:
        try:
            emit(form, {"error": document}, "")
        except typer.Exit as end:
            return int(end.exit_code)
    else:
        for line in lines:
            remark(f"error: {in_one_line(line)}")
    return code
