"""The options that every command has, declared once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from factorize.api.terminal.output import OutputForm
from factorize.api.terminal.spec_command import complete_spec


def option(*names: str, help: str, **more: Any) -> Any:
    """Return a command's option whose default is not shown: it is none, or its help says what it is."""
    return typer.Option(*names, help=help, show_default=False, **more)


def argument(*, metavar: str, help: str, **more: Any) -> Any:
    """Return a command's argument, likewise."""
    return typer.Argument(metavar=metavar, help=help, show_default=False, **more)


StoreUrl = Annotated[
    str | None,
    option(
        "--store",
        metavar="URL",
        help="Directory that results are kept in. Default: FACTORIZE_STORE, else the user's data folder.",
    ),
]
Output = Annotated[OutputForm, typer.Option("--output", help="Form of the result on stdout.")]
SpecText = Annotated[
    str,
    argument(
        metavar="SPEC",
        help="A path, '-' for stdin, inline JSON, or a workload with its fields as options: prefix --n 64.",
        autocompletion=complete_spec,
    ),
]
Target = Annotated[
    str, argument(metavar="FILE|DIGEST", help="A factor file, or the digest or spec digest of a stored result.")
]
Matrices = Annotated[
    str | None, option("--matrices", metavar="C,C_inv,B", help="Matrices to write into the file; C is always there.")
]
Dtype = Annotated[
    str,
    typer.Option(
        "--dtype",
        metavar="float64|float32",
        help="Type of the file's matrices: other numbers, with a digest and a certificate of their own.",
    ),
]
ToFile = Annotated[Path, option("--to", metavar="FILE", help="File to write.")]
Database = Annotated[
    str | None,
    option(
        "--database",
        metavar="URL",
        help="Job ledger, sqlite:////FILE or postgresql+psycopg://... Default: SQLite in the store's directory.",
    ),
]
ServiceUrl = Annotated[
    str | None,
    option(
        "--service",
        metavar="URL",
        envvar="FACTORIZE_SERVICE",
        help="A running service does it, with the store and the jobs of its own. Not with --store.",
    ),
]
MostSeconds = Annotated[float | None, option("--max-seconds", help="Leave out mechanisms that would take longer each.")]
TimeLimit = Annotated[float | None, option("--seconds", help="For all: what promises most is tried first.")]
ModelSize = Annotated[int | None, option("--parameters", help="Of the model: adds the seconds of a step's noise.")]
LogFormat = Annotated[
    str | None,
    option(
        "--log-format",
        metavar="text|json",
        help="Form of the log on stderr; json also has a line for each request and solve. Default: text.",
    ),
]
Explain = Annotated[bool, typer.Option("--explain", help="Also say what each term of the result means.")]
