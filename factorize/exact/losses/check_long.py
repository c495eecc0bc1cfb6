"""The claims of a file too long for whole matrices: by resolvents, log-determinants, power series and covariances."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np

from factorize.errors import CorruptObject
from factorize.exact import noising
from factorize.exact.arithmetic import series
from factorize.exact.arithmetic.integers import Numbers
from factorize.exact.arithmetic.intervals import NotEnclosed
from factorize.exact.arithmetic.machine import check_products
from factorize.exact.bounds import determinants, resolvents
from factorize.exact.claims import (
    check_added_noise,
    check_bound,
    check_class_bound,
    check_dense_losses,
    check_ends,
    check_losses,
)
from factorize.exact.doubles import toeplitz_losses
from factorize.exact.doubles.dense_losses import DenseLosses
from factorize.exact.doubles.workload_rows import Near, nearly
from factorize.exact.file import FactorFile
from factorize.exact.losses import residual, row_products, toeplitz_forms, variances
from factorize.exact.losses.widths import WIDEST, width_of_losses
from factorize.exact.participation import allowed
from factorize.exact.report import ADDED_NOISE, DECODER, LOSS, LOWER_BOUND, Report
from factorize.exact.sensitivity import Bracket, square_root_up
from factorize.exact.spec import Weighing, toeplitz_column, weighing_of
from factorize.exact.strategy import Strategy


def check_long(report: Report, file: FactorFile, strategy: Strategy, bracket: Bracket, whole: int) -> None:
    """Check what can be reached without whole matrices, and list what cannot.

    Args:
        report: receives the findings.
        file: the file.
        strategy: C.
        bracket: of its squared sensitivity.
        whole: longest n for which whole matrices are multiplied.
    """
    try:
        check_bound(report, file, bound_of_recursion(file))
    except NotEnclosed as reason:
        report.leave(f"the lower bound: {reason}", of=[LOWER_BOUND])
    check_class_bound(report, file, strategy, None)
    if "C_inv" in file.matrices:
        check_stored_inverse(report, file, strategy, bracket)
    if "B" not in file.matrices:
        check_added_noise(report, file, None)
    check_decoder(report, file, strategy, bracket, whole)


def check_decoder(
    report: Report,
    file: FactorFile,
    strategy: Strategy,
    bracket: Bracket,
    whole: int,
    otherwise: Callable[[Report], None] | None = None,
) -> None:
    """Check B C - A and the losses; see `check_long`.

    Args:
        report: receives the findings.
        file: the file.
        strategy: C.
        bracket: of its squared sensitivity.
        whole: longest n for which whole matrices are multiplied.
        otherwise: what checks losses that no recursion reaches.
    """
    try:
        _check_losses(report, file, strategy, bracket, whole, otherwise)
    except NotEnclosed as reason:
        report.leave(f"residual and losses: {reason}", of=[DECODER, ADDED_NOISE, LOSS])


def check_stored_inverse(report: Report, file: FactorFile, strategy: Strategy, bracket: Bracket) -> None:
    """Check a stored C^-1."""
    noising.check_noising(report, file, _noising(file, strategy, bracket))


def check_losses_of_series(report: Report, file: FactorFile, strategy: Strategy) -> None:
    """Check losses where no B is stored, and C and A are Toeplitz.

    Raises:
        NotEnclosed: they are not, or it grows too much.
        CertificateError: the residual of what series find is too large.
    """
    spec = file.manifest["spec"]
    column = toeplitz_column(spec["workload"]) if _by_series(strategy) else None
    if column is None or strategy.toeplitz is None:
        raise NotEnclosed("C or the workload is not Toeplitz")
    quick = _series_in_doubles(strategy, column, weighing_of(spec["objective"], strategy.n))
    if quick is not None:
        check_dense_losses(report, file, quick, strategy.n)
        return
    found = series.losses(strategy.toeplitz, column, spec["objective"], None)
    check_losses(report, file, found, strategy.n, False)


def check_losses_of_recursion(report: Report, file: FactorFile, strategy: Strategy) -> None:
    """Check losses where no B is stored.

    Raises:
        NotEnclosed: C or A is no recursion of few states, or it grows too much.
    """
    spec = file.manifest["spec"]
    ends = variances.losses(strategy, spec["workload"], spec["objective"])
    if ends is None:
        raise NotEnclosed("C or the workload is no recursion of few states")
    report.leave(_unchecked_residual(losses=True, stored=False, rows=False, whole=0))
    check_ends(report, file, ends, spec["workload"]["n"])


def _series_in_doubles(strategy: Strategy, workload: Numbers, weighing: Weighing) -> DenseLosses | None:
    """Losses of Toeplitz A and C, or None where doubles do not enclose them closely."""
    if strategy.n > toeplitz_losses.LARGEST or strategy.toeplitz is None:
        return None
    stored = strategy.column
    column = nearly(strategy.toeplitz) if stored is None else Near(stored, np.zeros(1))
    try:
        check_products()
        found = toeplitz_losses.enclosed_series(column, nearly(workload), weighing)
    except NotEnclosed:
        return None
    return found if width_of_losses(found.ends) <= WIDEST else None


def _by_series(strategy: Strategy) -> bool:
    return strategy.toeplitz is not None and strategy.n <= series.LARGEST


def bound_of_recursion(file: FactorFile) -> Fraction | None:
    """Return the lower bound of a workload that is a recursion of few states, or None where it is none.

    Raises:
        NotEnclosed: its numbers are too far apart.
    """
    found = resolvents.lower_bound(file.manifest["spec"], file.dual)
    return determinants.lower_bound(file.manifest["spec"], file.dual) if found is None else found


def _check_losses(
    report: Report,
    file: FactorFile,
    strategy: Strategy,
    bracket: Bracket,
    whole: int,
    otherwise: Callable[[Report], None] | None,
) -> None:
    spec, matrices = file.manifest["spec"], file.manifest["matrices"]
    stored = _column(file, "B", strategy.n)
    column = toeplitz_column(spec["workload"]) if _by_series(strategy) else None
    if strategy.toeplitz is None or column is None or ("B" in matrices and stored is None):
        rows = "B" in matrices and _check_rows(report, file, strategy, whole)
        ends = variances.losses(strategy, spec["workload"], spec["objective"])
        if ends is None and otherwise is not None:
            otherwise(report)
            if not rows:
                text = f"residual of the stored B: up to n={whole}, for C and A of these structures"
                report.leave(text, of=[DECODER, ADDED_NOISE])
            return
        if ends is None or not rows:
            of = [*([] if rows else [DECODER, ADDED_NOISE]), *([LOSS] if ends is None else [])]
            report.leave(
                _unchecked_residual(losses=ends is not None, stored="B" in matrices, rows=rows, whole=whole), of=of
            )
        if ends is not None:
            check_ends(report, file, ends, spec["workload"]["n"])
        return
    limit = residual.LIMITS[matrices["B"]["dtype"] if "B" in matrices else "float64"]
    found = series.losses(strategy.toeplitz, column, spec["objective"], stored, limit)
    check_losses(report, file, found, strategy.n, stored is not None)
    if stored is not None:
        check_added_noise(
            report, file, _encoder(stored, found, allowed(spec["participation"], strategy.n).most, bracket)
        )


def _check_rows(report: Report, file: FactorFile, strategy: Strategy, whole: int) -> bool:
    """B C - A for a stored array B, row by row; whether that could be done."""
    entry = file.manifest["matrices"]["B"]
    stored = _array(file, "B", strategy.n)
    found = None if stored is None else row_products.residual(stored, strategy, file.manifest["spec"]["workload"])
    if found is None:
        return False
    largest, _, longest = found
    most = float(residual.LIMITS[entry["dtype"]]) * max(longest, 1.0)
    report.require(
        largest <= most,
        f"B C = A up to {largest:.3g} per entry, enclosed row by row, for the stored B",
        f"B C differs from A by {largest:.3g}, above the limit {most:.3g}",
        of=DECODER,
    )
    report.leave(
        f"adding noise, A G + B Z: the inverse of a B that is not Toeplitz is bounded up to n={whole}", of=[ADDED_NOISE]
    )
    return True


def _array(file: FactorFile, name: str, n: int) -> np.ndarray | None:
    """A matrix that is stored whole, or None."""
    if file.manifest["matrices"][name]["structure"] != "dense":
        return None
    array = file.matrices[name][""]
    if array.shape != (n, n) or not np.isfinite(array).all():
        raise CorruptObject(f"{name} must be {n} x {n} finite numbers; got the shape {array.shape}")
    return array


def _column(file: FactorFile, name: str, n: int) -> np.ndarray | None:
    """The first column of a stored Toeplitz matrix, or None."""
    if name not in file.matrices or file.manifest["matrices"][name]["structure"] != "toeplitz":
        return None
    column = file.matrices[name]["coefficients"]
    if column.shape != (n,) or not np.isfinite(column).all():
        raise CorruptObject(f"the first column of {name} must be {n} finite numbers; got the shape {column.shape}")
    return column


def _encoder(stored: np.ndarray, found: residual.Losses, most: int, bracket: Bracket) -> float | str:
    try:
        return toeplitz_forms.added_noise(stored, found.rest, most, bracket.upper)
    except NotEnclosed as reason:
        return str(reason)


def _noising(file: FactorFile, strategy: Strategy, bracket: Bracket) -> noising.Noising | str:
    """What is proved of the stored C^-1: by series, in doubles, or row by row."""
    stored = _column(file, "C_inv", strategy.n)
    array = _array(file, "C_inv", strategy.n)
    if stored is not None and strategy.toeplitz is not None and strategy.n <= series.LARGEST:
        return noising.toeplitz(strategy.toeplitz, stored, bracket.upper)
    if array is not None and strategy.array is not None:
        return noising.in_doubles(strategy.array, strategy.scale, array, bracket.upper)
    rows = None if array is None else row_products.residual(array, strategy, None)
    if rows is None:
        return "it is not evaluated at this size for a C of this structure"
    norms, most = strategy.column_norms, allowed(file.manifest["spec"]["participation"], strategy.n).most
    norm = Fraction(
        square_root_up(Fraction(float(norms.values.sum())) * (1 + 2 * Fraction(norms.off) + Fraction(1, 2**20)))
    )
    return noising.by_rows(Fraction(rows[1]), norm, most, bracket.upper)


def _unchecked_residual(*, losses: bool, stored: bool, rows: bool, whole: int) -> str:
    if rows:
        return f"losses: up to n={whole}, for C and A of these structures"
    if not losses:
        return f"residual and losses: up to n={whole}, for C and A of these structures"
    if stored:
        return (
            f"residual, and with it adding noise, A G + B Z: a stored B is multiplied up to n={whole}, and beyond only "
            "where A, B and C are Toeplitz, or A and C recursions of few states"
        )
    return (
        "residual: no B is stored, so what is claimed is of rows that the certificate computed for itself; the losses "
        "above are of A C^-1 exactly"
    )
