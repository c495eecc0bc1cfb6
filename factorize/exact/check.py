"""Every claim of a factor file against its bytes; and a matrix of anybody's against a participation."""

from __future__ import annotations

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
    TooLarge,
)
from factorize.exact import residual
from factorize.exact.beyond_whole import check_long
from factorize.exact.bound import lower_bound
from factorize.exact.claims import (
    TOLERANCE,
    check_added_noise,
    check_bound,
    check_class_bound,
    check_losses,
)
from factorize.exact.endless import check_endless
from factorize.exact.file import FactorFile, read_factor_file
from factorize.exact.forms import added_noise
from factorize.exact.noising import check_noising
from factorize.exact.noising import whole as whole_noising
from factorize.exact.report import Report, check_claim
from factorize.exact.sensitivity import (
    TWO_STAGE,
    Bracket,
    allowed,
    square_root_down,
    square_root_up,
    squared_sensitivity,
)
from factorize.exact.strategy import Strategy
from factorize.exact.workload import check_known, workload_numbers

_UNRESTRICTED = ("dense", "semidefinite")
_OBJECTIVES = ("mean", "lambda_tau", "max", "weighted")


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
    except (KeyError, TypeError, AttributeError, ValueError, IndexError, ArithmeticError) as error:
        if isinstance(error, FactorizeError):
            raise
        raise CorruptObject(f"the manifest is not one: {type(error).__name__}: {str(error)[:200]}") from None
    return report


def _check(report: Report, file: FactorFile, user: Mapping[str, np.ndarray], whole: int) -> None:
    spec, claims, entry = file.manifest["spec"], file.manifest["certificate"], file.manifest["matrices"]["C"]
    check_known(spec["workload"])
    if spec["workload"].get("n") == "unbounded":
        check_endless(report, entry, file.matrices["C"], file.manifest)
        return
    workload_shape = spec["workload"].get("shape")
    m, n = workload_shape or (spec["workload"]["n"], spec["workload"]["n"])
    for name, matrix in file.manifest["matrices"].items():
        if matrix["shape"] != [m if name == "B" else n, n]:
            raise CertificateError(f"{name} is stated to have shape {matrix['shape']}, and the spec asks for n={n}")
    if spec["objective"]["kind"] not in _OBJECTIVES:
        raise CertificateError(f"this checker knows no objective {str(spec['objective']['kind'])[:40]!r}")
    strategy = Strategy(entry["structure"], file.matrices["C"], n)
    report.checked.append(
        f"C is finite and lower-triangular bit by bit, with a positive diagonal: full rank; stored as {entry['dtype']}"
    )
    bracket = _check_sensitivity(report, strategy, spec, claims["sensitivity"])
    report.checked.append("publishing B (C G + Z) rests on C alone: the sensitivity above holds whatever B is")
    _check_convergence(report, spec, claims)
    report.not_checked.append("who solved it, with what and for how long: provenance is recorded, not proved")
    if n > whole:
        check_long(report, file, strategy, bracket, whole)
        return
    workload = workload_numbers(spec["workload"], user)
    if workload is None or workload.values.shape != (m, n):
        report.not_checked.append(
            "residual, losses, lower bound and adding noise: the workload's numbers are not known here"
        )
        return
    stored, limit = None, residual.LIMITS["float64"]
    if "B" in file.matrices:
        stored = residual.read_matrix(file.manifest["matrices"]["B"]["structure"], file.matrices["B"], (m, n))
        limit = residual.LIMITS[file.manifest["matrices"]["B"]["dtype"]]
    found = residual.losses(strategy, workload, spec["objective"], stored, limit)
    most = allowed(spec["participation"], n).most
    encoder = None if stored is None else added_noise(stored, found.rest, most, bracket.upper)
    check_added_noise(report, file, encoder)
    _check_inverse(report, file, strategy, bracket)
    check_losses(report, file, found, m, stored is not None)
    check_bound(report, file, lower_bound(spec, file.dual, workload))
    check_class_bound(report, file, strategy, workload)


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
    _refuse_undecided(strategy, bracket, value)
    check_claim(report, bracket, value, n=strategy.n, kind=claim["kind"])
    return bracket


def _refuse_undecided(strategy: Strategy, bracket: Bracket, value: float) -> None:
    """Do not call false what is only not proved: selections among the nodes of a tree reach further than rows of X."""
    if strategy.tree is None or bracket.rule != TWO_STAGE or not bracket.lower <= Fraction(value) ** 2 < bracket.upper:
        return
    low, high = square_root_down(bracket.lower), square_root_up(bracket.upper)
    raise TooLarge(
        f"the sensitivity {value!r} of this tree is between {low!r} and {high!r}, as exact as the {TWO_STAGE} is; the "
        "certificate's programme over the nodes has no exact form here: verify without exact arithmetic, or take "
        "fixed_epochs, or min_sep without max_participations"
    )


def _check_convergence(report: Report, spec: Mapping[str, Any], claims: Mapping[str, Any]) -> None:
    """What `converged` says, where the lower bound decides it; and that bounds and gap fit the objective."""
    within, kind = claims.get("class_lower_bound"), spec["mechanism"]["kind"]
    gaps: dict[str, float | None] = {}
    for name in ("lower_bound", "class_lower_bound"):
        bound, attained = claims.get(name), claims["loss"]["objective"]
        if bound is not None and not 0 < bound["objective"] <= attained * (1 + TOLERANCE):
            report.failed.append(f"the {name} {bound['objective']!r} is above the objective, which attains less")
        gaps[name] = attained / bound["objective"] - 1 if bound is not None and bound["objective"] > 0 else None
    gap, stated = gaps["lower_bound"], claims["relative_gap"]
    if (stated is None) != (gap is None) or (gap is not None and not abs(gap - stated) <= TOLERANCE):
        report.failed.append(f"the relative gap is claimed as {stated!r}; losses and lower bound say {gap!r}")
    if not claims["converged"]:
        return
    if kind == "banded" and within is not None:
        gap = gaps["class_lower_bound"]
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


def _check_inverse(report: Report, file: FactorFile, strategy: Strategy, bracket: Bracket) -> None:
    matrices, n = file.manifest["matrices"], strategy.n
    if "C_inv" not in matrices:
        return
    inverse = residual.read_matrix(matrices["C_inv"]["structure"], file.matrices["C_inv"], (n, n))
    check_noising(report, file, whole_noising(strategy, inverse, bracket.upper))


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
    if np.triu(array, 1).any() and not np.tril(array, -1).any():
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
    scaled = array / np.abs(array).max()  # its squares do not overflow
    columns, rows = (np.linalg.norm(scaled, axis=axis) for axis in (0, 1))
    if np.ptp(rows) < 1e-6 * rows.max() and np.ptp(columns) > 1e-3 * columns.max():
        found.append("the rows of C have equal norms and the columns have not: sensitivity is a matter of the columns")
    return found
