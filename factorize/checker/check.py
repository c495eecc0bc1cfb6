"""Checks of every claim of a factor file against its bytes, and of any matrix against a participation.

For prefix sums without end, the sensitivity is a limit and the losses have to be infinite.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from factorize.checker import claims
from factorize.checker.arithmetic.machine import check_mode, require_mode
from factorize.checker.arithmetic.near import NotEnclosed
from factorize.checker.mechanism import Named, belongs, belongs_endless
from factorize.checker.participation import allowed
from factorize.checker.report import (
    ADDED_NOISE,
    CLASS_BOUND,
    DECODER,
    LOSS,
    LOWER_BOUND,
    STRATEGY,
    Report,
    check_claim,
    stated_claims,
)
from factorize.checker.sensitivity import bracket_limit, bracket_sensitivity, exactly
from factorize.checker.spec.workloads import array_of, check_known
from factorize.checker.stored import check_decoder, check_inverse
from factorize.checker.strategy import FactorFile, Strategy, read_factor_file
from factorize.checker.structures.toeplitz import falls
from factorize.checker.utility import Utility
from factorize.errors import (
    CertificateError,
    CorruptObject,
    FactorizeError,
    InvalidParticipation,
    InvalidSpec,
    InvalidStrategy,
)
from factorize.spec import Spec, parse_spec


def check_factor_file(
    data: bytes,
    *,
    user: Mapping[str, np.ndarray] | None = None,
    proved: Utility | None = None,
    known: Spec | None = None,
) -> Report:
    """Check a factor file from its bytes.

    Args:
        data: the whole file.
        user: numbers of user-supplied workloads by sha256, where the spec names any.
        proved: losses and bounds that this process has proved; used if they belong to the file's own numbers.
        known: a spec that this process has read; used in place of the manifest's if the two are the same.

    Returns:
        The report; `supported` says whether every claim that was checked holds, `unseen` which claims were not checked.

    Raises:
        CorruptObject: the bytes are not accounted for, or disagree with their digests.
        TooLarge: the sensitivity cannot be evaluated exactly at this size.
    """
    report, file = _open(data, known)
    try:
        check_mode()
        _check(report, file, user or {}, proved)
    except NotEnclosed as reason:
        report.leave(str(reason), of=report.stated)
    except (CertificateError, InvalidStrategy, InvalidParticipation) as error:
        report.failed.append(str(error))
    except (KeyError, TypeError, AttributeError, ValueError, IndexError, ArithmeticError) as error:
        if isinstance(error, FactorizeError):
            raise
        raise CorruptObject(f"the manifest is not valid: {type(error).__name__}: {str(error)[:200]}") from None
    return report


def leave_undecided(data: bytes, reason: str) -> Report:
    """Return the report on a file whose claims are not checked, since its sensitivity cannot be decided.

    Raises:
        CorruptObject: see `check_factor_file`.
    """
    report, _ = _open(data)
    report.leave(f"the sensitivity: {reason}", of=report.stated)
    return report


def _open(data: bytes, known: Spec | None = None) -> tuple[Report, FactorFile]:
    file = read_factor_file(data)
    stated, same = file.manifest["spec"], known is not None and known.digest == file.manifest["spec_digest"]
    try:
        canonical = same or parse_spec(stated).document() == stated
    except InvalidSpec as error:
        raise CorruptObject(f"the manifest's spec is not valid: {str(error)[:200]}") from None
    if not canonical:
        raise CorruptObject("the manifest's spec is not in its canonical form")
    report = Report(stated=stated_claims(file.manifest))
    report.prove("every byte of the file belongs to a tensor or the manifest, and every digest agrees")
    return report, file


def _check(report: Report, file: FactorFile, user: Mapping[str, np.ndarray], proved: Utility | None) -> None:
    spec, stated, entry = file.manifest["spec"], file.manifest["certificate"], file.manifest["matrices"]["C"]
    check_known(spec["workload"])
    if spec["workload"].get("n") == "unbounded":
        check_endless(report, entry, file.matrices["C"], file.manifest)
        return
    strategy = file.strategy()
    report.prove(
        f"C is finite and lower-triangular bit by bit, with a positive diagonal: full rank; stored as {entry['dtype']}",
        of=STRATEGY,
    )
    named = Named(spec, strategy, entry["dtype"], file.matrices["C"])
    claims.check_mechanism(report, spec["mechanism"]["kind"], lambda: belongs(named))
    bracket = bracket_sensitivity(strategy, spec["participation"])
    claims.check_sensitivity(report, stated["sensitivity"], spec["participation"], bracket)
    report.prove("publishing B (C G + Z): the sensitivity above covers it, whatever B is")
    report.leave("who solved it, with what and for how long: provenance is recorded, not proved")
    if spec["workload"]["kind"] != "matrix" or array_of(spec["workload"], user) is not None:
        known = proved is not None and proved.concerns(spec, strategy, file.dual)
        utility = proved if proved is not None and known else Utility(spec, strategy, file.dual, user)
        claims.check_bound(report, file, utility)
        claims.check_class_bound(report, file, utility)
        if "B" in file.matrices:
            check_decoder(report, file, strategy, bracket, user)
        else:
            claims.check_added_noise(report, file, None)
        claims.check_losses(report, file, utility, spec["workload"].get("shape", [strategy.n])[0])
    else:
        report.leave(
            "residual, losses, lower bound and adding noise: the workload's numbers are not known here",
            of=[DECODER, ADDED_NOISE, LOSS, LOWER_BOUND, CLASS_BOUND],
        )
    if "C_inv" in file.matrices:
        check_inverse(report, file, strategy, bracket)
    claims.check_convergence(report, spec, stated)


def check_matrix_sensitivity(array: np.ndarray, participation: Mapping[str, object], *, claim: float = 1.0) -> Report:
    """Answer whether a matrix has sensitivity at most `claim` under a participation.

    Args:
        array: C, shape (n, n).
        participation: in the contract's JSON form.
        claim: the sensitivity that its owner assumes.

    Raises:
        InvalidStrategy: the array is no finite lower-triangular matrix with a positive diagonal.
        InvalidParticipation: the participation does not fit n.
        TooLarge: the sensitivity cannot be evaluated exactly at this size.
        CertificateError: this machine's floating point cannot be relied on.
    """
    report = Report()
    require_mode()
    n = array.shape[1]
    if array.shape != (n, n):
        raise InvalidStrategy(f"a strategy matrix must be square; got shape {array.shape}")
    if np.triu(array, 1).any() and not np.tril(array, -1).any():
        raise InvalidStrategy("the matrix is upper-triangular, so it looks transposed: C[i, j] must be 0 for j > i")
    strategy = Strategy("dense", {"": array}, n)
    report.prove("C is finite and lower-triangular bit by bit, with a positive diagonal")
    try:
        bracket = bracket_sensitivity(strategy, participation)
    except NotEnclosed as reason:
        raise CertificateError(str(reason)) from None
    check_claim(report, exactly(strategy, participation, bracket, claim), claim, kind=None)
    report.warnings.extend(_warnings(strategy, array, participation))
    report.leave("whether C suits the workload, and how well; `factorize add` certifies that, too")
    return report


def _warnings(strategy: Strategy, array: np.ndarray, participation: Mapping[str, object]) -> list[str]:
    notes = []
    form = allowed(participation, strategy.n)
    several = form.most > 1
    if strategy.reading.signed and several:
        notes.append(
            "C has negative entries, so adding columns up gives no bound; absolute Gram entries were added instead"
        )
    if several and not form.periodic and strategy.bandwidth > form.separation:
        notes.append(
            f"C has {strategy.bandwidth} bands, more than min_sep={form.separation}, so two steps of one user "
            "overlap, and sums of column norms are not a bound"
        )
    if strategy.toeplitz is not None and several and not falls(array[:, 0]):
        notes.append(
            "C is Toeplitz, but its coefficients are not monotone, so the leading pattern may not be the worst"
        )
    scaled = array / np.abs(array).max()  # Its squares do not overflow.
    columns, rows = (np.linalg.norm(scaled, axis=axis) for axis in (0, 1))
    if np.ptp(rows) < 1e-6 * rows.max() and np.ptp(columns) > 1e-3 * columns.max():
        notes.append(
            "the rows of C have equal norms, but its columns do not, and the sensitivity depends on the columns"
        )
    return notes


def check_endless(
    report: Report, entry: Mapping[str, Any], parts: Mapping[str, np.ndarray], manifest: Mapping[str, Any]
) -> None:
    """Check the claims of a file whose workload has no last step; `entry` and `parts` are those of C.

    Raises:
        CertificateError, CorruptObject, InvalidStrategy, InvalidParticipation: the file is no such file, or claims the
            impossible.
        TooLarge: the sensitivity cannot be enclosed at this size.
    """
    spec, stated = manifest["spec"], manifest["certificate"]
    if entry["shape"] != [None, None] or spec["workload"]["kind"] != "prefix":
        raise CertificateError(f"C is stated to have shape {entry['shape']}, but the spec's n is 'unbounded'")
    bracket = bracket_limit(entry["structure"], parts, spec["participation"])
    claims.check_sensitivity(report, stated["sensitivity"], spec["participation"], bracket)
    report.require(
        all(loss is None for loss in stated["loss"].values()),
        "the losses are stated as infinite, which prefix sums without end have under every strategy",
        "a loss is stated as finite, but prefix sums without end have none",
        of=LOSS,
    )
    if [stated["lower_bound"], stated.get("class_lower_bound"), stated["relative_gap"]] != [None] * 3:
        raise CertificateError("a bound is claimed, but nothing supports one")
    report.prove("no bound is claimed")
    report.prove("C is finite, with coefficients that fade and a positive diagonal", of=STRATEGY)
    mechanism = spec["mechanism"]
    claims.check_mechanism(report, mechanism["kind"], lambda: belongs_endless(mechanism, entry["structure"], parts))
    claims.check_convergence(report, spec, stated)
    report.leave("the residual: there is no last row")
    report.leave("who solved it, with what and for how long: provenance is recorded, not proved")
