"""The options that every command has, declared once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from factorize.api.terminal.output import OutputForm
from factorize.api.terminal.spec_command import complete_spec

StoreUrl = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help="Directory that results are kept in. Default: FACTORIZE_STORE, else the user's data folder.",
        show_default=False,
    ),
]
Output = Annotated[OutputForm, typer.Option("--output", help="Form of the result on stdout.")]
SpecText = Annotated[
    str,
    typer.Argument(
        metavar="SPEC",
        help="A path, '-' for stdin, inline JSON, or a workload with its fields as options: prefix --n 64.",
        autocompletion=complete_spec,
        show_default=False,
    ),
]
Target = Annotated[
    str,
    typer.Argument(
        metavar="FILE|DIGEST",
        help="A factor file, or the digest or spec digest of a stored result.",
        show_default=False,
    ),
]
Matrices = Annotated[
    str | None,
    typer.Option(
        "--matrices",
        metavar="C,C_inv,B",
        help="Matrices to write into the file; C is always there.",
        show_default=False,
    ),
]
Dtype = Annotated[
    str,
    typer.Option(
        "--dtype",
        metavar="float64|float32",
        help="Type of the file's matrices: other numbers, with a digest and a certificate of their own.",
    ),
]
ToFile = Annotated[Path, typer.Option("--to", metavar="FILE", help="File to write.", show_default=False)]
Database = Annotated[
    str | None,
    typer.Option(
        "--database",
        metavar="URL",
        help="Job ledger, sqlite:////FILE or postgresql+psycopg://... Default: SQLite in the store's directory.",
        show_default=False,
    ),
]
ServiceUrl = Annotated[
    str | None,
    typer.Option(
        "--service",
        metavar="URL",
        envvar="FACTORIZE_SERVICE",
        help="A running service does it, with the store and the jobs of its own. Not with --store.",
        show_default=False,
    ),
]
MostSeconds = Annotated[
    float | None,
    typer.Option("--max-seconds", help="Leave out mechanisms that would take longer each.", show_default=False),
]
ModelSize = Annotated[
    int | None,
    typer.Option("--parameters", help="Of the model: adds the seconds of a step's noise.", show_default=False),
]
LogFormat = Annotated[
    str | None,
    typer.Option(
        "--log-format",
        metavar="text|json",
        help="Form of the log on stderr; json also has a line for each request and solve. Default: text.",
        show_default=False,
    ),
]
Explain = Annotated[bool, typer.Option("--explain", help="Also say what each term of the result means.")]
