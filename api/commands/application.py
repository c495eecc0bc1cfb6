"""The application: all commands under one name, and the end of each as an exit code.

An expected error is a sentence on stderr (or a JSON document on stdout with `--output json`), never a traceback.
"""

from __future__ import annotations

import itertools
from typing import Annotated, Any

import typer

from factorize import __version__
from factorize.api.commands.administration import jobs, keys
from factorize.api.commands.batch import batch
from factorize.api.commands.calibrate import calibrate, predict, profile
from factorize.api.commands.receipt_command import receipt
from factorize.api.commands.recommend import compare, recommend
from factorize.api.commands.serve import audit, fsck, gc, revoke, serve, worker
from factorize.api.commands.solve import add, estimate, solve, spec
from factorize.api.commands.stored_results import get, ls, plot, show, sign
from factorize.api.commands.verify import verify
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
COMMANDS: tuple[Any, ...] = (solve, estimate, batch, compare, recommend, add, ls, show, get, sign, receipt, verify)
COMMANDS += (plot, calibrate, profile, predict, serve, worker, fsck, gc, revoke)
BY_WORDS = (solve, estimate, compare, recommend, get)
"""Commands whose first argument is a spec, which may be said in words."""
GROUPS = (spec, jobs, keys, audit)

app = Commands(
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


for _command in COMMANDS:
    _kinds = (ModelCommand,) * hasattr(_command, "options") + (SpecCommand,) * (_command in BY_WORDS)
    _words = {"words": "factorize.api.questions.optimizer:JobInWords"} if _command is recommend else {}
    app.command(cls=type("Command", _kinds, _words) if _kinds else None)(_command)
for _group in GROUPS:
    app.add_typer(_group)


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
