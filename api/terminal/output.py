"""The parts that commands share: options, results on stdout, what their terms mean, remarks on stderr, and exit codes.

Every expected error has one code:
0 ok, 2 usage or a bad spec, 3 a solve failed, 4 verification failed, 5 service unreachable, 6 a stated claim was not
looked at, 130 interrupted.
"""

from __future__ import annotations

import errno
import inspect
import json
import os
import sys
from collections.abc import Callable, Mapping
from enum import IntEnum, StrEnum
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args

import typer
from typer.models import ArgumentInfo

from factorize.api.terminal.spec_command import OnceCommand, complete_spec
from factorize.encoding import JsonObject
from factorize.errors import (
    CertificateError,
    CorruptObject,
    FactorizeError,
    InvalidParameter,
    InvalidSpec,
    NotFound,
    Revoked,
    ServiceError,
    ServiceUnreachable,
    SolveFailed,
    StoreUnavailable,
)
from factorize.format.claims import is_exact
from factorize.format.labels import describe_spec
from factorize.format.quantities import at_least, at_most

if TYPE_CHECKING:
    from factorize.format.manifest import Manifest


class OutputForm(StrEnum):
    """Form of the result on stdout."""

    TEXT = "text"
    JSON = "json"


def emit(form: OutputForm, document: object, text: str) -> None:
    """Write the result to stdout, as one JSON document or as text.

    Raises:
        typer.Exit: whoever read stdout has gone, or the disk behind it is full.
    """
    shown = json.dumps(document, indent=2, ensure_ascii=True, allow_nan=False) if form is OutputForm.JSON else text
    try:
        sys.stdout.write(shown + "\n")
        sys.stdout.flush()
    except OSError as error:
        # What is left in the buffer would fail again when the interpreter closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise typer.Exit(ExitCode.BROKEN_PIPE) from None
        remark(f"error: the result cannot be written to standard output: {error.strerror}")
        raise typer.Exit(ExitCode.SOLVE_FAILED) from None


def remark(text: str) -> None:
    """Write a line to stderr."""
    print(text, file=sys.stderr, flush=True)


class ExitCode(IntEnum):
    """The contract's exit codes, and what a shell expects after a closed pipe."""

    OK = 0
    USAGE = 2
    SOLVE_FAILED = 3
    VERIFICATION_FAILED = 4
    UNREACHABLE = 5
    NOT_LOOKED_AT = 6
    INTERRUPTED = 130
    BROKEN_PIPE = 141


_CODES: tuple[tuple[type[FactorizeError], ExitCode], ...] = (
    (InvalidParameter, ExitCode.USAGE),
    (NotFound, ExitCode.USAGE),
    (SolveFailed, ExitCode.SOLVE_FAILED),
    (CertificateError, ExitCode.SOLVE_FAILED),
    (StoreUnavailable, ExitCode.SOLVE_FAILED),
    (CorruptObject, ExitCode.VERIFICATION_FAILED),
    (Revoked, ExitCode.VERIFICATION_FAILED),
    (ServiceUnreachable, ExitCode.UNREACHABLE),
)


class VerificationFailed(Exception):
    """A stored or downloaded result does not hold what it claims.

    Args:
        cause: what did not hold.
    """

    def __init__(self, cause: FactorizeError) -> None:
        super().__init__(str(cause))
        self.cause = cause


def exit_code(error: Exception) -> ExitCode:
    """Return the exit code of an expected error.

    Args:
        error: a FactorizeError, VerificationFailed, or an OSError on a file that the user named.
    """
    if isinstance(error, VerificationFailed):
        return ExitCode.VERIFICATION_FAILED
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    if isinstance(error, ServiceError):  # a problem that the service answered with: its type, then its status
        if str(error.problem.get("type", "")).endswith(("corrupt-object", "revoked")):
            return ExitCode.VERIFICATION_FAILED
        if error.status is not None and 400 <= error.status < 500:
            return ExitCode.USAGE
        return ExitCode.UNREACHABLE if error.status == 503 else ExitCode.SOLVE_FAILED
    # A file that the user named cannot be read or written; or there is no room for a result.
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO)
    return ExitCode.SOLVE_FAILED if full else ExitCode.USAGE


def failure_of(error: Exception) -> tuple[ExitCode, dict[str, object], list[str]]:
    """Return what a command makes of an expected error: its exit code, and what it says as JSON and as lines."""
    return exit_code(error), error_document(error), error_lines(error)


def error_document(error: Exception) -> dict[str, object]:
    """Return the JSON form of an expected error: type, detail, and where a spec is wrong one entry per place."""
    cause = error.cause if isinstance(error, VerificationFailed) else error
    kind = cause.slug if isinstance(cause, FactorizeError) else "file-error"
    document: dict[str, object] = {"type": kind, "detail": error_text(cause)}
    places = _places(cause)
    if places:
        document["errors"] = [{"pointer": pointer, "detail": detail} for pointer, detail in places]
    elif isinstance(cause, InvalidParameter) and cause.field:
        document["field"] = cause.field
    return document


def _places(error: Exception) -> list[tuple[str, str]]:
    """Return where a spec is wrong and how, as this program or a service has found it."""
    if isinstance(error, InvalidSpec):
        return [(violation.pointer, violation.message) for violation in error.violations]
    listed = error.problem.get("errors") if isinstance(error, ServiceError) else None
    entries = listed if isinstance(listed, list) else []
    return [(str(e.get("pointer", "")), str(e.get("detail", ""))) for e in entries if isinstance(e, dict)]


def error_lines(error: Exception) -> list[str]:
    """Return the text form of an expected error: one line, or one per violation of a spec."""
    return [f"{pointer}: {detail}" if pointer else detail for pointer, detail in _places(error)] or [error_text(error)]


def error_text(error: Exception) -> str:
    """Return one line that says what went wrong."""
    if isinstance(error, FileNotFoundError) and error.strerror and error.filename is None:
        return "the working folder has been removed; change to another"  # Every other call names its file.
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return " ".join(str(error).split()) or type(error).__name__


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
SignatureFile = Annotated[
    Path | None, option("--signature", metavar="FILE.sig", help="Of the file, by OpenSSF Model Signing: is verified.")
]
PublicKey = Annotated[Path | None, option("--public-key", metavar="KEY.pem", help="With --signature: whose it is.")]
Output = Annotated[
    OutputForm, typer.Option("--output", help="Form of the result on stdout; the output of a workload is --released.")
]
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
Holds = Annotated[
    str | None,
    option("--holds", metavar="NAME", help="What one array without a name is: C, coefficients, inverse_coefficients."),
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
Function = TypeVar("Function", bound=Callable[..., Any])
OPTIONS: Mapping[str, Any] = {"service": ServiceUrl, "database": Database, "store": StoreUrl, "output": Output}
"""The options that mean the same everywhere: all commands have the last two, and others those that they name."""
Shown = tuple[Any, str] | tuple[Any, str, int]
"""The answer of a command, as plain data and as text; and its exit code, where it may not be 0."""


class Commands(typer.Typer):
    """Commands that have the shared options, and return what is printed."""

    def command(self, *rest: Any, **named: Any) -> Callable[[Function], Function]:
        """Register one."""
        named["cls"] = named.get("cls") or OnceCommand
        return lambda function: super(Commands, self).command(*rest, **named)(_with_shared(function))


def _with_shared(function: Any) -> Any:
    """Return a function with the arguments of a command, the options of its models, its own, and those shared."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = inspect.signature(function, eval_str=True).parameters
    own = [one.replace(kind=keyword) for name, one in parameters.items() if name not in (*OPTIONS, "fields")]
    models: list[inspect.Parameter] = getattr(function, "options", list)()
    place = sum(isinstance(part, ArgumentInfo) for one in own for part in get_args(one.annotation))
    defaults = {"output": OutputForm.TEXT}
    names = [name for name in OPTIONS if name in parameters or name in ("store", "output")]
    shared = [inspect.Parameter(one, keyword, default=defaults.get(one), annotation=OPTIONS[one]) for one in names]

    @wraps(function)
    def command(**values: Any) -> Any:
        # A shell leaves the `~` of `--to=~/file` to the command.
        values = {name: Path(os.path.expanduser(one)) if isinstance(one, Path) else one for name, one in values.items()}
        service = values.get("service")
        if service is not None and values["store"] is not None:
            way_out = "leave --store, or --service and FACTORIZE_SERVICE, out"
            raise InvalidParameter(f"the service {service} has its own store; {way_out}", field="store")
        fields = {one.name: values[one.name] for one in models if values[one.name] not in (None, (), [])}
        given = values | {"fields": fields}
        shown = function(**{name: given[name] for name in parameters})
        if not isinstance(shown, tuple):
            return shown
        emit(values["output"], *shown[:2])
        return shown[2] if len(shown) > 2 else None

    every = [*own[:place], *models, *own[place:], *shared]
    command.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
    return command


Explain = Annotated[bool, typer.Option("--explain", help="Also say what each term of the result means.")]


TERMS = {
    "sensitivity": "the most by which one example or user can change what is released, for contributions of norm 1 or "
    "less; noise is scaled to it (docs/sensitivity.md)",
    "objective": "the loss that was minimised, at noise of one sensitivity: by default the mean of the outputs' "
    "variances (docs/notation.md)",
    "rmse": "root of the mean variance of an output; times the noise multiplier it is the error of a run "
    "(docs/notation.md)",
    "max error": "root of the largest variance of an output (docs/notation.md)",
    "last iterate": "root of the variance of the last output, the trained model (docs/notation.md)",
    "lower bound": "an objective that no matrix beats, recomputed from evidence in the file (docs/notes/method.md)",
    "class bound": "an objective that no matrix of the mechanism's own class beats (docs/notes/method.md)",
    "relative gap": "objective / lower bound - 1: no more than that can be gained (docs/notes/method.md)",
    "residual": "largest entry of |B C - A|: how well the factors multiply to the workload (docs/verification.md)",
    "converged": "whether the tolerance of the spec was met within the mechanism's class (docs/spec.md)",
}


def describe_certificate(certificate: Mapping[str, Any]) -> list[str]:
    """Return the certificate's numbers, one per line."""
    sensitivity, loss, gap = certificate["sensitivity"], certificate["loss"], certificate["relative_gap"]
    kind = "exact" if is_exact(sensitivity) else "an upper bound"
    named = {"objective": "objective", "rmse": "rmse", "max error": "max_error", "last iterate": "last_iterate"}
    numbers = {
        "sensitivity": f"{at_most(sensitivity['value'], 12)}  ({kind}: {sensitivity['rule']})",
        **{name: _loss(loss[field], 12) for name, field in named.items()},
        "lower bound": _bound(certificate["lower_bound"]),
        **({"class bound": _bound(own)} if (own := certificate.get("class_lower_bound")) else {}),
        "relative gap": "unknown" if gap is None else format(gap, ".3g"),
        "residual": f"{certificate['residual']['max_abs']:.3g}",
        "converged": "yes" if certificate["converged"] else "no",
    }
    lines = [f"{name:<14}{text}" for name, text in numbers.items()]
    return lines + [f"warning       {text}" for text in certificate["warnings"]]


def _loss(value: float | None, digits: int) -> str:
    return "infinite" if value is None else f"{value:.{digits}g}"


def _bound(bound: JsonObject | None) -> str:
    return "none known" if bound is None else f"{at_least(bound['objective'], 12)}  ({bound['rule']})"


def describe_manifest(manifest: Manifest) -> str:
    """Return a result in text."""
    head = [
        f"spec          {describe_spec(manifest.spec)}",
        f"spec digest   {manifest.spec_digest}",
        f"digest        {manifest.digest}",
    ]
    return "\n".join(head + describe_certificate(manifest.certificate))


def describe_gap(certificate: Mapping[str, Any]) -> str:
    """Return objective and gap in a few words, for one line per result."""
    gap = certificate["relative_gap"]
    known = "no bound known" if gap is None else f"gap {gap:.1e}"
    met = "" if certificate["converged"] else ", tolerance not met"
    return f"objective {_loss(certificate['loss']['objective'], 8)}, {known}{met}"


def explained(text: str) -> str:
    """Return a printed result with the meaning of each term that it has below."""
    used = [name for name in TERMS if any(line.startswith(f"{name} ") for line in text.splitlines())]
    return "\n".join([text, "", *(f"{name:<14}{TERMS[name]}" for name in used)])
