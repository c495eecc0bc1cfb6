"""Every claim of a factor file against its bytes; and a matrix of anybody's against a participation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from factorize.errors import (
    CertificateError,
    CorruptObject,
    FactorizeError,
    InvalidParticipation,
    InvalidStrategy,
)
from factorize.exact import residual, resolvents, series, variances
from factorize.exact.bound import lower_bound
from factorize.exact.classes import class_bound
from factorize.exact.endless import check_endless
from factorize.exact.file import FactorFile, read_factor_file
from factorize.exact.forms import added_noise
from factorize.exact.integers import Numbers
from factorize.exact.intervals import NotEnclosed
from factorize.exact.report import Report, check_claim
from factorize.exact.sensitivity import Bracket, allowed, squared_sensitivity
from factorize.exact.strategy import Strategy
from factorize.exact.workload import toeplitz_column, workload_numbers

TOLERANCE = 1e-9
"""Relative difference allowed to losses and bounds, which decide utility; the sensitivity is allowed none."""
_UNRESTRICTED = ("dense", "semidefinite")


def check_factor_file(
    data: bytes, *, user: Mapping[str, np.ndarray] | None = None, whole: int = residual.LARGEST
) -> Report:
    """Check a factor file from its bytes.

    Args:
        data: the whole file.
        user: numbers of user-supplied workloads by sha256, where the spec names any.
        whole: longest n for which whole matrices are multiplied; beyond, only what recursions and series can reach.

    Returns:
        The report; `supported` says whether every claim that was looked at holds.

    Raises:
        CorruptObject: the bytes are not accounted for, or disagree with their digests.
        TooLarge: the sensitivity cannot be evaluated exactly at this size.
    """
    report = Report()
    file = read_factor_file(data)
    report.checked.append("every byte of the file belongs to a tensor or the manifest, and every digest agrees")
    try:
        _check(report, file, user or {}, min(whole, residual.LARGEST))
    except (CertificateError, InvalidStrategy, InvalidParticipation) as error:
        report.failed.append(str(error))
    except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
        if isinstance(error, FactorizeError):
            raise
        raise CorruptObject(f"the manifest is not one: {type(error).__name__}: {str(error)[:200]}") from None
    return report


def _check(report: Report, file: FactorFile, user: Mapping[str, np.ndarray], whole: int) -> None:
    spec, claims, entry = file.manifest["spec"], file.manifest["certificate"], file.manifest["matrices"]["C"]
    if spec["workload"].get("n") == "unbounded":
        check_endless(report, entry, file.matrices["C"], file.manifest)
        return
    workload_shape = spec["workload"].get("shape")
    m, n = workload_shape or (spec["workload"]["n"], spec["workload"]["n"])
    if entry["shape"] != [n, n]:
        raise CertificateError(f"C is stated to have shape {entry['shape']}, and the spec asks for n={n}")
    strategy = Strategy(entry["structure"], file.matrices["C"], n)
    report.checked.append(
        f"C is finite and lower-triangular bit by bit, with a positive diagonal: full rank; stored as {entry['dtype']}"
    )
    bracket = _check_sensitivity(report, strategy, spec, claims["sensitivity"])
    report.checked.append("publishing B (C G + Z) rests on C alone: the sensitivity above holds whatever B is")
    _check_convergence(report, spec, claims)
    report.not_checked.append("who solved it, with what and for how long: provenance is recorded, not proved")
    if n > whole:
        _check_long(report, file, strategy, whole)
        return
    workload = workload_numbers(spec["workload"], user)
    if workload is None or workload.values.shape != (m, n):
        report.not_checked.append("residual, losses and lower bound: the workload's numbers are not known here")
        return
    stored, limit = None, residual.LIMITS["float64"]
    if "B" in file.matrices:
        stored = residual.read_matrix(file.manifest["matrices"]["B"]["structure"], file.matrices["B"], (m, n))
        limit = residual.LIMITS[file.manifest["matrices"]["B"]["dtype"]]
    found = residual.losses(strategy, workload, spec["objective"], stored, limit)
    _check_added_noise(report, file, stored, found, bracket)
    _check_inverse(report, file, strategy)
    _check_losses(report, file, found, m, stored is not None)
    _check_bound(report, file, lower_bound(spec, file.dual, workload))
    _check_class_bound(report, file, strategy, workload)


def _check_sensitivity(
    report: Report, strategy: Strategy, spec: Mapping[str, Any], claim: Mapping[str, Any]
) -> Bracket:
    value = float.fromhex(claim["hex"])
    report.require(
        claim["participation"] == spec["participation"] and claim["kind"] in ("exact", "upper_bound"),
        f"the sensitivity is stated for the participation of the spec: {_brief(spec['participation'])}",
        f"the sensitivity is stated for {_brief(claim['participation'])}, not {_brief(spec['participation'])}",
    )
    if value != claim["value"]:
        report.failed.append("the sensitivity's value and its hex form are two different numbers")
    bracket = squared_sensitivity(strategy, spec["participation"])
    check_claim(report, bracket, value, n=strategy.n, kind=claim["kind"])
    return bracket


def _check_convergence(report: Report, spec: Mapping[str, Any], claims: Mapping[str, Any]) -> None:
    """What `converged` says, where the lower bound decides it; and that no bound is above what it bounds."""
    gap, within, kind = claims["relative_gap"], claims.get("class_lower_bound"), spec["mechanism"]["kind"]
    for name in ("lower_bound", "class_lower_bound"):
        bound = claims.get(name)
        if bound is not None and not 0 < bound["objective"] <= claims["loss"]["objective"] * (1 + TOLERANCE):
            report.failed.append(f"the {name} {bound['objective']!r} is above the objective, which attains less")
    if not claims["converged"]:
        return
    if kind == "banded" and within is not None:
        gap = claims["loss"]["objective"] / within["objective"] - 1
    if (kind in _UNRESTRICTED and spec.get("optimize_for") is None) or (kind == "banded" and within is not None):
        report.require(
            gap is not None and gap <= spec["tolerance"],
            f"converged: the gap {gap!r} is within the tolerance {spec['tolerance']!r}",
            f"the file claims to have converged, and its gap {gap!r} is not within the tolerance {spec['tolerance']!r}",
        )
    else:
        report.not_checked.append(f"converged: what the solver of {kind} says of its own class")


def _brief(participation: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in dict(participation).items())


def _check_long(report: Report, file: FactorFile, strategy: Strategy, whole: int) -> None:
    """Beyond whole matrices: resolvents; power series where C and A are Toeplitz, covariances where they recur."""
    try:
        _check_bound(report, file, resolvents.lower_bound(file.manifest["spec"], file.dual))
    except NotEnclosed as reason:
        report.not_checked.append(f"the lower bound: {reason}")
    _check_class_bound(report, file, strategy, None)
    try:
        _check_long_losses(report, file, strategy, whole)
    except NotEnclosed as reason:
        report.not_checked.append(f"residual and losses: {reason}")


def _check_long_losses(report: Report, file: FactorFile, strategy: Strategy, whole: int) -> None:
    spec = file.manifest["spec"]
    column = toeplitz_column(spec["workload"]) if strategy.n <= series.LARGEST else None
    if strategy.toeplitz is None or column is None or spec["objective"]["kind"] == "lambda_tau":
        ends = variances.losses(strategy, spec["workload"], spec["objective"])
        report.not_checked.append(_unchecked_residual(ends is not None, "B" in file.matrices, whole))
        if ends is not None:
            _check_ends(report, file, ends, spec["workload"]["n"])
        return
    stored = file.matrices.get("B", {}).get("coefficients")
    limit = residual.LIMITS[file.manifest["matrices"].get("B", {"dtype": "float64"})["dtype"]]
    found = series.losses(strategy.toeplitz, column, spec["objective"], stored, limit)
    _check_losses(report, file, found, strategy.n, stored is not None)
    report.not_checked.append(f"adding noise, A G + B Z: up to n={whole}")


def _unchecked_residual(losses: bool, stored: bool, whole: int) -> str:
    if not losses or stored:
        return f"{'residual' if losses else 'residual and losses'}: up to n={whole}, for C and A of these structures"
    return (
        "residual: no B is stored, so what is claimed is of rows that the certificate computed for itself; the losses "
        "above are of A C^-1 exactly"
    )


def _check_inverse(report: Report, file: FactorFile, strategy: Strategy) -> None:
    matrices = file.manifest["matrices"]
    if "C_inv" not in matrices:
        return
    inverse = residual.read_matrix(matrices["C_inv"]["structure"], file.matrices["C_inv"], (strategy.n, strategy.n))
    error = residual.inverse_residual(strategy, inverse)
    most = float(residual.LIMITS[matrices["C_inv"]["dtype"]]) * max(1.0, float(np.abs(inverse).sum(axis=1).max()))
    report.require(
        error <= most,
        f"the stored C_inv times C is I up to {error:.3g} per entry, computed without rounding",
        f"the stored C_inv times C differs from I by {error:.3g}, above {most:.3g}",
    )


def _check_losses(report: Report, file: FactorFile, found: residual.Losses, m: int, from_file: bool) -> None:
    origin = "the stored B" if from_file else "a B recomputed here by substitution"
    report.checked.append(f"B C = A up to {found.residual:.3g} per entry, computed without rounding, for {origin}")
    _check_ends(report, file, found, m)


def _check_ends(report: Report, file: FactorFile, found: residual.Losses | variances.Ends, m: int) -> None:
    claims = file.manifest["certificate"]
    variance = float.fromhex(claims["sensitivity"]["hex"]) ** 2
    enclosures = {
        "total_squared": _times(found.total, variance),
        "mean_squared": _times(found.total, variance / m),
        "rmse": _root(_times(found.total, variance / m)),
        "max_error": _root(_times(found.largest, variance)),
        "last_iterate": _root(_times(found.last, variance)),
        "objective": _times(found.objective, variance),
    }
    for name, (low, high) in enclosures.items():
        stated = claims["loss"][name]
        if not low * (1 - TOLERANCE) <= stated <= high * (1 + TOLERANCE):
            report.failed.append(f"loss.{name} is claimed as {stated!r}, and lies between {low!r} and {high!r}")
    width = max((high - low) / high if high else 0.0 for low, high in enclosures.values())
    report.checked.append(f"every loss enclosed to relative {width:.2g} (claims may differ by {TOLERANCE:g})")


def _check_added_noise(
    report: Report, file: FactorFile, stored: np.ndarray | None, found: residual.Losses, bracket: Bracket
) -> None:
    """The other form, A G + B Z, whose privacy rests on B: a claim of its own, beside B in the manifest."""
    if stored is None:
        report.not_checked.append(
            "adding noise, A G + B Z or A (G + C^-1 Z): no B is stored, and the job's own arithmetic decides"
        )
        return
    spec = file.manifest["spec"]
    encoder = added_noise(stored, found.rest, allowed(spec["participation"], stored.shape[1]).most, bracket.upper)
    claim = file.manifest["matrices"]["B"].get("encoder_sensitivity")
    if claim is None or isinstance(encoder, str):
        why = encoder if isinstance(encoder, str) else f"it is at most {encoder!r}"
        kept = report.not_checked if claim is None else report.failed
        kept.append(f"adding noise, A G + B Z, is not certified by this file: {why}")
        return
    value = float.fromhex(claim["hex"])
    report.require(
        value == claim["value"] and math.isfinite(value) and encoder <= value,
        f"adding noise, A G + B Z: B has full rank, and its encoder has sensitivity at most {encoder!r} (claimed "
        f"{value!r})",
        f"the sensitivity of A G + B Z is claimed as {value!r}; proved is at most {encoder!r}",
    )


def _times(ends: tuple[float, float], factor: float) -> tuple[float, float]:
    return ends[0] * factor * (1 - 2.0**-50), ends[1] * factor * (1 + 2.0**-50)


def _root(ends: tuple[float, float]) -> tuple[float, float]:
    return math.sqrt(ends[0]) * (1 - 2.0**-50), math.sqrt(ends[1]) * (1 + 2.0**-50)


def _check_bound(report: Report, file: FactorFile, proved: Fraction | None) -> None:
    claims = file.manifest["certificate"]
    claim = claims["lower_bound"]
    if claim is None:
        report.not_checked.append("optimality: the file claims no lower bound")
        return
    if proved is None:
        known = bool(file.dual)
        text = f"the lower bound {claim['objective']!r} ({claim['rule']})"
        kept = report.not_checked if known else report.failed
        kept.append(f"{text}: evidence of this kind is not evaluated here" if known else f"{text} has no evidence")
        return
    below = math.nextafter(float(proved), 0.0)
    report.require(
        claim["objective"] <= below * (1 + TOLERANCE),
        f"no strategy matrix has an objective below {below!r}, proved from the dual evidence (claimed "
        f"{claim['objective']!r}; claims may differ by {TOLERANCE:g})",
        f"the lower bound {claim['objective']!r} is not supported: the dual evidence proves {below!r}",
    )
    gap = claims["loss"]["objective"] / claim["objective"] - 1
    if abs(gap - claims["relative_gap"]) > TOLERANCE:
        report.failed.append(f"the relative gap is claimed as {claims['relative_gap']!r}; the losses say {gap!r}")


def _check_class_bound(report: Report, file: FactorFile, strategy: Strategy, workload: Numbers | None) -> None:
    spec, claim = file.manifest["spec"], file.manifest["certificate"].get("class_lower_bound")
    if claim is None:
        return
    try:
        column = toeplitz_column(spec["workload"]) if strategy.n <= series.LARGEST else None
        below = math.nextafter(float(class_bound(spec, strategy, workload, column)), 0.0)
    except NotEnclosed as reason:
        report.not_checked.append(
            f"the lower bound within the mechanism's class, but that the objective is not below it: {reason}"
        )
        return
    report.require(
        claim["objective"] <= below * (1 + TOLERANCE),
        f"no strategy matrix of the mechanism's class has an objective below {below!r} (claimed "
        f"{claim['objective']!r}; claims may differ by {TOLERANCE:g})",
        f"the class_lower_bound {claim['objective']!r} is not supported: proved is {below!r}",
    )


def check_strategy(array: np.ndarray, participation: Mapping[str, Any], *, claim: float = 1.0) -> Report:
    """Answer whether a matrix has sensitivity at most `claim` under a participation.

    Args:
        array: C, shape (n, n).
        participation: in the contract's JSON form.
        claim: the sensitivity that its owner believes.

    Raises:
        InvalidStrategy: not a finite lower-triangular matrix with a positive diagonal.
        InvalidParticipation: it does not fit n.
        TooLarge: it cannot be evaluated exactly at this size.
    """
    report = Report()
    n = array.shape[1]
    if array.shape != (n, n):
        raise InvalidStrategy(f"a strategy matrix is square; got shape {array.shape}")
    if n > 1 and np.triu(array, 1).any() and not np.tril(array, -1).any():
        raise InvalidStrategy("the matrix is upper-triangular: it looks transposed; C[i, j] is 0 for j > i")
    strategy = Strategy("dense", {"": array}, n)
    report.checked.append("C is finite and lower-triangular bit by bit, with a positive diagonal")
    bracket = squared_sensitivity(strategy, participation)
    check_claim(report, bracket, claim, n=n, kind=None)
    report.warnings.extend(_warnings(strategy, array, participation))
    report.not_checked.append("the workload: whether C serves it, and how well; `factorize add` certifies that too")
    return report


def _warnings(strategy: Strategy, array: np.ndarray, participation: Mapping[str, Any]) -> list[str]:
    found = []
    several = participation["kind"] != "single"
    if strategy.signed and several:
        found.append("C has negative entries: adding columns up is then no bound, so absolute Gram entries were added")
    if participation["kind"] == "min_sep" and strategy.bandwidth > participation["min_sep"]:
        found.append(
            f"C has {strategy.bandwidth} bands, more than min_sep={participation['min_sep']}: two steps of one user "
            "overlap, and sums of column norms are no bound"
        )
    if strategy.toeplitz is not None and several and not strategy.monotone:
        found.append("C is Toeplitz with coefficients that are not monotone: the leading pattern may not be the worst")
    columns, rows = (np.linalg.norm(array, axis=axis) for axis in (0, 1))
    if np.ptp(rows) < 1e-6 * rows.max() and np.ptp(columns) > 1e-3 * columns.max():
        found.append("the rows of C have equal norms and the columns have not: sensitivity is a matter of the columns")
    return found
