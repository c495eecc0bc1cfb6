"""The claims of a file by whole matrices, multiplied without rounding as integers: slow, and the oracle of tests."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from factorize.exact.arithmetic.integers import Numbers
from factorize.exact.bounds.bound import lower_bound
from factorize.exact.claims import check_added_noise, check_bound, check_class_bound, check_losses
from factorize.exact.file import FactorFile
from factorize.exact.forms import added_noise
from factorize.exact.losses import residual
from factorize.exact.noising import check_noising
from factorize.exact.noising import whole as whole_noising
from factorize.exact.participation import allowed
from factorize.exact.report import ADDED_NOISE, CLASS_BOUND, DECODER, LOSS, LOWER_BOUND, Report
from factorize.exact.sensitivity import Bracket
from factorize.exact.spec import workload_numbers
from factorize.exact.strategy import Strategy


def check_whole(
    report: Report, file: FactorFile, strategy: Strategy, bracket: Bracket, user: Mapping[str, np.ndarray]
) -> None:
    """Check residual, losses, bounds and added noise.

    Args:
        report: receives the findings.
        file: the file.
        strategy: C, short enough to be had whole.
        bracket: of its squared sensitivity.
        user: numbers of user-supplied workloads by sha256.
    """
    spec = file.manifest["spec"]
    workload = numbers_of(file, user)
    if workload is None:
        leave_unknown(report)
        check_inverse(report, file, strategy, bracket)
        return
    check_decoder(report, file, strategy, bracket, workload)
    check_inverse(report, file, strategy, bracket)
    check_bound(report, file, lower_bound(spec, file.dual, workload))
    check_class_bound(report, file, strategy, workload)


def numbers_of(file: FactorFile, user: Mapping[str, np.ndarray]) -> Numbers | None:
    """Return A, or None for a user's matrix whose numbers are not known here."""
    workload = file.manifest["spec"]["workload"]
    shape = tuple(workload.get("shape") or [workload["n"], workload["n"]])
    found = workload_numbers(workload, user)
    return None if found is None or found.values.shape != shape else found


def leave_unknown(report: Report) -> None:
    """File what cannot be looked at without the numbers of a user's matrix."""
    report.leave(
        "residual, losses, lower bound and adding noise: the workload's numbers are not known here",
        of=[DECODER, ADDED_NOISE, LOSS, LOWER_BOUND, CLASS_BOUND],
    )


def check_decoder(report: Report, file: FactorFile, strategy: Strategy, bracket: Bracket, workload: Numbers) -> None:
    """Check B C - A, the losses, and adding noise with a stored B."""
    spec, (m, n) = file.manifest["spec"], workload.values.shape
    stored, limit = None, residual.LIMITS["float64"]
    if "B" in file.matrices:
        stored = residual.read_matrix(file.manifest["matrices"]["B"]["structure"], file.matrices["B"], (m, n))
        limit = residual.LIMITS[file.manifest["matrices"]["B"]["dtype"]]
    found = residual.losses(strategy, workload, spec["objective"], stored, limit)
    most = allowed(spec["participation"], n).most
    check_added_noise(report, file, None if stored is None else added_noise(stored, found.rest, most, bracket.upper))
    check_losses(report, file, found, m, stored is not None)


def check_losses_alone(report: Report, file: FactorFile, strategy: Strategy, workload: Numbers) -> None:
    """Check the losses where no B is stored."""
    found = residual.losses(strategy, workload, file.manifest["spec"]["objective"], None)
    check_losses(report, file, found, len(workload.values), False)


def is_known(file: FactorFile, user: Mapping[str, np.ndarray]) -> bool:
    """Whether A has a definition, or its numbers are given with the shape that the spec states."""
    workload = file.manifest["spec"]["workload"]
    if workload["kind"] != "matrix":
        return True
    found = user.get(workload["sha256"])
    return found is not None and found.shape == tuple(workload["shape"])


def check_inverse(report: Report, file: FactorFile, strategy: Strategy, bracket: Bracket) -> None:
    """Check a stored C^-1."""
    matrices, n = file.manifest["matrices"], strategy.n
    if "C_inv" not in matrices:
        return
    inverse = residual.read_matrix(matrices["C_inv"]["structure"], file.matrices["C_inv"], (n, n))
    check_noising(report, file, whole_noising(strategy, inverse, bracket.upper))
