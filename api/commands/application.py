"""The application: all commands under one name, and the end of each as an exit code.

An expected error is a sentence on stderr (or a JSON document on stdout with `--output json`), never a traceback.
"""

from __future__ import annotations

import itertools
from importlib import import_module
from typing import Annotated, Any

import typer.core
import typer.main

from factorize import __version__
from factorize.api.terminal.output import (
    Commands,
    ExitCode,
    OutputForm,
    VerificationFailed,
    emit,
    error_document,
    error_lines,
    exit_code,
    remark,
)
from factorize.api.terminal.spec_command import ModelCommand, SpecCommand
from factorize.errors import FactorizeError, extras_named

NAME = "factorize"
COMMANDS: dict[str, tuple[str, str]] = {
    "solve": (
        "solve",
        "Solve a spec, certify the answer and store it; a spec that was solved before is answered from the store.",
    ),
    "estimate": (
        "solve",
        "Say how long a spec takes on this machine and how much memory, and whether the store has it; solves nothing.",
    ),
    "batch": ("batch", "Solve a grid or a list of specs."),
    "compare": (
        "recommend",
        "Solve a spec with every mechanism that fits it, and show losses, memory, time and what to take.",
    ),
    "recommend": (
        "recommend",
        "Answer which mechanism, which sampling and how much noise a training job takes, with the code that uses it.",
    ),
    "add": ("solve", "Certify a strategy of your own for a spec, check it exactly from the bytes, and store it."),
    "ls": (
        "stored_results",
        "List the results of the store, newest first; every command takes a digest by its first characters.",
    ),
    "show": ("stored_results", "Show a result: its spec, its digests, its certificate and what is stored of it."),
    "get": (
        "stored_results",
        "Write a factor file: downloaded from a service, resumed where it was cut, and checked before it "
        "gets its name.",
    ),
    "mirror": (
        "stored_results",
        "Write a store as static files that any web server shows: results, index, revocations, a page for each.",
    ),
    "sign": (
        "stored_results",
        "Sign a factor file or a receipt with a key of yours: a bundle of OpenSSF Model Signing, made offline.",
    ),
    "receipt": (
        "receipt_command",
        "Write the in-toto statement that the run of a receipt released a model; factorize-check proves the receipt.",
    ),
    "verify": ("verify", "Prove every claim of a result from its bytes, and list those that were not looked at."),
    "plot": ("stored_results", "Draw results (.png, .pdf or .svg): one overview, or several beside each other."),
    "calibrate": ("calibrate", "Compute the standard deviation of the noise for (--epsilon, --delta), --rho or --mu."),
    "profile": (
        "calibrate",
        "Compute delta at many epsilons for a given noise, under a sampling and without; all hold at once.",
    ),
    "predict": ("calibrate", "Answer a question about a training run: exact losses on quadratics and on regression."),
    "serve": ("serve", "Run the service until it is interrupted; its address is the first line on stdout."),
    "worker": (
        "serve",
        "Solve what the scheduler gives out until interrupted; the worker's address is the first line on stdout.",
    ),
    "fsck": ("serve", "Read every object of the store and compare it with its digest."),
    "gc": (
        "serve",
        "Remove what nothing names: old temporary files and blobs; and the results that --delete and --retention name.",
    ),
    "revoke": (
        "serve",
        "Take a result back: from now on everyone who asks for it is told why, and its spec is solved anew.",
    ),
    "spec": ("solve", "Show, explain or name a spec; list what may be in one."),
    "jobs": ("administration", "Look after the jobs of a service."),
    "keys": ("administration", "Look after the keys of a service, in its ledger."),
    "audit": ("serve", "Check the audit log; or attack a claim of privacy."),
}
"""Commands and groups by name: the module that has them, and what the list of all says."""
BY_WORDS = ("solve", "estimate", "compare", "recommend", "get")
"""Commands whose first argument is a spec, which may be said in words."""


def command_of(name: str) -> Any:
    """Return a command, or a group of them; its module is imported here."""
    made = getattr(import_module(f"factorize.api.commands.{COMMANDS[name][0]}"), name)
    alone = Commands(pretty_exceptions_enable=False)
    if isinstance(made, typer.Typer):
        alone.add_typer(made)
    else:
        kinds = (ModelCommand,) * hasattr(made, "options") + (SpecCommand,) * (name in BY_WORDS)
        words = {"words": "factorize.api.questions.optimizer:JobInWords"} if name == "recommend" else {}
        alone.command(cls=type("Command", kinds, words) if kinds else None)(made)
    return typer.main.get_group(alone).commands[name]


class ByName(typer.core.TyperGroup):
    """The group of all commands, whose modules are imported when a command line names them."""

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


for _name, (_, _line) in COMMANDS.items():
    app.command(_name, help=_line)(lambda: None)


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
        return _fail(form, exit_code(error), error_document(error), error_lines(error))
    except MemoryError as error:
        text = f"out of memory: {error or 'an allocation was refused'}; use a smaller n or a structured mechanism"
        return _fail(form, ExitCode.SOLVE_FAILED, {"type": "out-of-memory", "detail": text}, [text])
    except typer.TyperException as error:
        return _usage(form, error)
    except typer.Abort as end:
        if isinstance(end.__cause__, EOFError):  # nobody asks for input here: a file or a stream that was cut off
            raise end.__cause__ from None
        return ExitCode.INTERRUPTED
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED


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
    lines = [" ".join(error.format_message().split()), f"`{path} --help` lists what it takes"]
    return _fail(form, ExitCode.USAGE, {"type": "usage", "detail": "; ".join(lines)}, lines)


def _fail(form: OutputForm, code: ExitCode, document: dict[str, Any], lines: list[str]) -> int:
    if form is OutputForm.JSON:
        try:
            emit(form, {"error": document}, "")
        except typer.Exit:
            return ExitCode.BROKEN_PIPE
    else:
        for line in lines:
            remark(f"error: {line}")
    return code
