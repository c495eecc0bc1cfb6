"""The receipt of a run with its factor files: which parts are proved, rest on the job's word, or are unknown.

The receipt is read strictly (`factorize.format.receipts`); this module shares no arithmetic with its writer.
Sensitivity, noise multiplier, mu, epsilon and delta are derived again from the bytes of the factors and the standard
deviation of the noise. Counts, sampling and participation are compared with each other (`samplings`).

The sensitivity of first and second moments that are released together is derived from brackets of both squared
sensitivities by docs/notes/checker.md, "First and second moments".

Several receipts together show copies and continuations of one run, and noise that two runs have used.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import combinations
from pathlib import Path
from typing import Any

from flint import arb, ctx

from factorize.checker.arithmetic.balls import PLACES, ball, double_above
from factorize.checker.arithmetic.machine import check_mode
from factorize.checker.arithmetic.near import NotEnclosed, square_root_up
from factorize.checker.receipt_text import say_counts, say_level
from factorize.checker.report import SENSITIVITY, Report, check_claim
from factorize.checker.sampling.star import gaussian_delta
from factorize.checker.samplings import PRIVACY, SECRET_ORDERS, check_order
from factorize.checker.sensitivity import Bracket, bracket_limit, bracket_sensitivity
from factorize.checker.strategy import FactorFile, read_factor_file
from factorize.encoding import JsonObject, canonical_json
from factorize.errors import CertificateError, CorruptObject, FactorizeError, TooLarge
from factorize.format.bins_claims import check_means
from factorize.format.quantities import ClaimRefused, at_least, at_most, number, require
from factorize.format.receipts import LOSSES, check_chain, is_state_of, read_receipt, steps_of
from factorize.format.weights import DIRECTORY, digest_of_path

FACTORS, NOISE, STEPS, TOGETHER, MODEL = map("receipt.{}".format, ("factors", "noise", "steps", "together", "model"))
_ADJACENCY_FACTORS = {"zero_out": 1, "replace_one": 2}
"""How many clip norms one unit may move a sum by, for each adjacency."""
_MIN_MU = Fraction(1e-9)
"""The smallest mu: a smaller one is raised to it, which is safe, as less noise has a larger mu."""
_Document = Mapping[str, Any]
_Files = Sequence[FactorFile]


def check_receipt(text: bytes, files: Sequence[bytes], *, model: Path | None = None) -> Report:
    """Check a receipt against the factor files that it names.

    Args:
        text: the receipt, JSON.
        files: the factor file, or the two of first and second moments with separate noise, in any order.
        model: path of the released weights, which are compared with their digest in the receipt.

    Returns:
        The report, which ends at the first part that is false. `supported` says whether nothing failed, `not_checked`
        lists statements that rest on the job's word.

    Raises:
        OSError: the model cannot be read.
        CorruptObject: the bytes of a factor file disagree with their digests.
        TooLarge: the sensitivity cannot be evaluated at this size.
    """
    report, claim = Report(stated=(FACTORS, SENSITIVITY, NOISE, PRIVACY, STEPS)), None
    try:
        check_mode()
        receipt = read_receipt(text)
        opened = _in_order(receipt, [read_factor_file(data) for data in files])
        for part, check in _PARTS:
            claim = part
            check(report, receipt, opened)
            if not report.supported:
                return report
        claim = MODEL
        _check_model(report, receipt["model"], model)
        _say_what_is_left(report, receipt)
    except NotEnclosed as reason:
        report.leave(str(reason), of=report.stated)
    except (TooLarge, CorruptObject):
        raise
    except (ClaimRefused, FactorizeError) as reason:
        report.refute(str(reason), of=claim)
    except (KeyError, TypeError, AttributeError, ValueError, IndexError, ArithmeticError) as error:
        report.refute(f"the receipt is not valid: {type(error).__name__}: {str(error)[:200]}", of=claim)
    return report


def _in_order(receipt: _Document, files: list[FactorFile]) -> _Files:
    """Return the files in the receipt's order, those that it does not name after the others."""
    places = {entry["digest"]: place for place, entry in enumerate(receipt["factors"])}
    return sorted(files, key=lambda file: places.get(file.manifest["digest"], len(places)))


def _check_files(report: Report, receipt: _Document, files: _Files) -> None:
    stated = receipt["factors"]
    require(len(stated) == len(files), f"the receipt names {len(stated)} factor files, but {len(files)} are given")
    for entry, file in zip(stated, files, strict=True):
        own = file.manifest["digest"]
        require(entry["digest"] == own, f"the receipt names the factors {entry['digest']}, but the file is {own}")
        same = canonical_json(entry["spec"]) == canonical_json(file.manifest["spec"])
        require(same, f"the receipt and the file {own} state different specs")
    report.prove("the factor file is the one that the receipt names, byte by byte, for the spec stated", of=FACTORS)


def _check_steps(report: Report, receipt: _Document, files: _Files) -> None:
    """Count the steps of all processes: each once, unless the job states that nobody saw those that it took twice."""
    stated, n, taken = receipt["steps"], files[0].steps, 0
    require(stated["processes"] != [], "no step was taken yet, so nothing was released")
    for first, last in stated["processes"]:
        require(first <= taken, f"steps {taken} to {first} were skipped, but the noise of later steps depends on them")
        if first < taken:
            twice = f"steps {first} to {min(last, taken)} were taken twice, with the same noise"
            refusal = f"{twice}: the difference of the two releases shows gradients, unless nobody saw the first"
            require(stated["unpublished"], refusal)
            report.leave(f"{twice}; the job states that nobody saw what the first process released")
        taken = max(taken, last)
    require(n is None or taken <= n, f"{taken} steps were taken, but the guarantee covers {n}")
    report.prove(f"{taken} steps were taken, of {n or 'any number'} that the guarantee covers", of=STEPS)
    check_order(receipt, n, taken)
    report.prove(say_counts(stated), of=STEPS)
    for reason, count in stated.get("refused", {}).items():
        report.leave(f"the job states that {count} contributions were refused ({reason}) and count as zeros")
    check_chain(receipt["run"], stated)
    report.prove("each process names the state of the run that it continued", of=STEPS)
    report.open = not stated["ended"]
    if report.open:
        report.leave("steps after those of the receipt: the run has not ended")


def _largest(stated: _Document) -> Fraction:
    """Return the most that one unit moves C G, by the stated sensitivity, which was proved before."""
    return number(stated, "sensitivity") * number(stated, "clip_norm") * _ADJACENCY_FACTORS[stated["adjacency"]]


def _mu(receipt: _Document) -> Fraction:
    """Return an upper bound of the mu of the stated noise, without sampling."""
    return max(_largest(receipt["calibration"]) / number(receipt["calibration"], "sigma_of_sums"), _MIN_MU)


def _check_noise(report: Report, receipt: _Document, files: _Files) -> None:
    """Prove the sensitivity, and the numbers that follow from it and sigma."""
    stated, unit = receipt["calibration"], receipt["unit"]
    _check_sensitivity(report, stated, files)
    sigma, largest = number(stated, "sigma_of_sums"), _largest(stated)
    multiplier, mu = number(stated, "noise_multiplier"), number(stated, "mu")
    check_means(stated, "sigma_of_means", sigma)
    if len(files) == 2:
        second, needed = number(stated, "second_sigma_of_sums"), sigma * number(stated, "clip_norm")
        check_means(stated, "second_sigma_of_means", second)
        report.require(
            second * number(stated, "weight") >= needed,
            "the noise of the squares has at least the standard deviation that their weight requires",
            f"second_sigma_of_sums {float(second)!r} is below what the weight {stated['weight']!r} requires",
            of=NOISE,
        )
    moved = f"the most that one {unit} moves C G"
    report.require(
        multiplier * largest <= sigma and mu * sigma >= largest,
        f"sigma_of_sums {float(sigma)!r} is at least {at_least(multiplier)} times {moved}, {at_most(largest)}: without "
        f"sampling the run is {at_most(mu)}-GDP",
        f"sigma_of_sums {float(sigma)!r} is {at_least(sigma / largest)} times {moved}; the receipt states a noise "
        f"multiplier of {float(multiplier)!r} and mu {float(mu)!r}",
        of=NOISE,
    )


def _check_sensitivity(report: Report, stated: _Document, files: _Files) -> None:
    file, participation = files[0], stated["participation"]
    if len(files) == 2:
        bracket = bracket_of(files, stated)
    elif file.steps is None:
        bracket = bracket_limit(file.manifest["matrices"]["C"]["structure"], file.matrices["C"], participation)
    else:
        bracket = bracket_sensitivity(file.strategy(), participation)
    check_claim(report, bracket, float(stated["sensitivity"]), kind=stated["sensitivity_kind"])


def _check_privacy(report: Report, receipt: _Document, files: _Files) -> None:
    """Prove epsilon and delta of the calibration, and from them those of the receipt."""
    stated = receipt["calibration"]
    epsilon, delta, overflow = number(stated, "epsilon"), number(stated, "delta"), number(receipt, "overflow_delta")
    report.require(
        number(receipt, "epsilon") == epsilon and number(receipt, "delta") >= delta + overflow,
        "epsilon is the calibration's, and delta covers the calibration's and what the capacity of batches adds",
        f"the receipt states ({receipt['epsilon']!r}, {receipt['delta']!r}), but its calibration and what the "
        f"capacity adds make ({stated['epsilon']!r}, {float(delta + overflow)!r})",
        of=PRIVACY,
    )
    if stated["sampling"] != "fixed":
        report.leave(f"capacity: the job states that batches of limited capacity add {at_most(overflow, 3)} to delta")
    secret, without = SECRET_ORDERS.get(stated["sampling"]), _gaussian_delta(epsilon, _mu(receipt))
    if secret is not None:
        secret.prove(report, receipt, files[0], double_above(without))
    else:
        report.require(
            without <= ball(delta),
            f"{say_level(stated)}-DP of the Gaussian mechanism with this noise, exactly computed",
            f"{say_level(stated)} is not reached: at this noise delta is above",
            of=PRIVACY,
        )


def _check_together(report: Report, receipt: _Document, files: _Files) -> None:
    """Prove the guarantee together with other runs on the data, or as the best of many (docs/notes/selection.md)."""
    others, together, search = receipt["others"], receipt["together"], receipt.get("trials", {"mean": 1, "surplus": 0})
    if together is None:
        return
    report.stated = (*report.stated, TOGETHER)
    mu, mean, surplus = _mu(receipt), number(search, "mean"), number(search, "surplus")
    all_of_it, epsilon, delta = (number(together, name) for name in ("mu", "epsilon", "delta"))
    left = max(epsilon - 2 * surplus, Fraction(0))
    best = f", the best of {at_most(mean)} in the mean," if mean > 1 else ""
    runs = f"this run{best} and {len(others)} under `others`"
    report.require(
        all_of_it**2 >= mu**2 + sum(number(other, "mu") ** 2 for other in others)
        and ball(mean - 1) * _gaussian_delta(surplus, mu) <= ball(surplus).expm1()
        and epsilon >= 2 * surplus
        and ball(mean) * _gaussian_delta(left, all_of_it) <= ball(delta),
        f"{runs} have {say_level(together)}-DP together",
        f"{runs} are not ({together['epsilon']!r}, {together['delta']!r})-DP together",
        of=TOGETHER,
    )
    report.leave("other runs: the job states what they released, that there were no more, and how many a search made")


_PARTS = (
    (FACTORS, _check_files),
    (STEPS, _check_steps),
    (NOISE, _check_noise),
    (PRIVACY, _check_privacy),
    (TOGETHER, _check_together),
)


def _check_model(report: Report, stated: _Document | None, model: Path | None) -> None:
    """Compare the released weights, where they are given, with the digest of the receipt."""
    report.stated += (MODEL,) * (model is not None)
    if model is None or stated is None:
        missing = "none are given" if stated else "the receipt names none"
        report.leave(f"which weights the run released: {missing}", of=[MODEL])
        return
    if stated["of"] == DIRECTORY:
        report.leave("the names of the model's files: its digest is of their bytes, in the order of their paths")
    own, named = digest_of_path(model, stated["of"]), f"the receipt names {stated['of']} of digest {stated['sha256']}"
    report.require(own == stated["sha256"], f"{named}, as {model} has", f"{named}, but {model} has {own}", of=MODEL)


def _say_what_is_left(report: Report, receipt: _Document) -> None:
    clip, unit = receipt["calibration"]["clip_norm"], receipt["unit"]
    report.aside = ", and the loss was not looked at" * (receipt["loss"] == "not_looked_at")
    report.leave(LOSSES[receipt["loss"]])
    if not receipt["noise"]["commitments"]:
        report.leave("whether another run used the same noise: the receipt does not commit to its own")
    report.leave(f"clipping: the job states that one {unit} contributed at most {at_most(clip)} to each step")
    if unit == "user":
        report.leave("users: the job states that all examples of one user were known to be of that user")
    report.leave("the order: the auditor saw the batches that the job gave it; the job states that it trained on these")
    report.leave(
        "the noise: the job states that it added it to every step, with this sigma, and that its normals are "
        "independent and from a secret, unguessable seed"
    )
    report.leave("unknown: how hyperparameters were chosen, and what else was released of these data")


@ctx.workprec(PLACES)
def _gaussian_delta(epsilon: Fraction, mu: Fraction) -> arb:
    """Return a ball with the delta of a mu-GDP Gaussian mechanism at epsilon >= 0."""
    return gaussian_delta(ball(epsilon), ball(mu))


RUNS = "receipts.noise"


def compare_receipts(receipts: Sequence[JsonObject]) -> Report:
    """Prove that no two receipts used the same noise; each of them was checked before."""
    report = Report(stated=(RUNS,))
    for (i, one), (j, other) in combinations(enumerate(receipts, 1), 2):
        two = f"the receipts {i} and {j}"
        mine, theirs = (set(each["noise"]["commitments"]) for each in (one, other))
        steps = min(steps_of(one), steps_of(other))
        if one["run"] == other["run"]:
            report.require(
                is_state_of(one, other) or is_state_of(other, one),
                f"{two} are of one run: the same receipt, or one before the other",
                f"{two} are of one run, which continued twice from one state, or they contradict each other: the same "
                "noise was used twice, so the difference of what was released shows gradients",
                of=RUNS,
            )
        elif not (mine and theirs):
            report.leave(f"whether {two} are of one noise: one does not commit to its own", of=[RUNS])
        else:
            report.require(
                not (mine & theirs and steps),
                f"{two} are of two runs, and no step of one has the noise of the other",
                f"{two} are of two runs with the same noise, and both took the steps 0 to {steps}: the difference of "
                "what they released shows gradients",
                of=RUNS,
            )
    return report


def bracket_of(files: Sequence[FactorFile], statement: Mapping[str, Any]) -> Bracket:
    """Return bounds of the squared sensitivity of a pair, in units of clip norm and of the adjacency's factor.

    Args:
        files: the files of C1 and C2.
        statement: part of a receipt, or `JointMoments.document()`: digests, participation, adjacency, weight and the
            sensitivity's kind.

    Raises:
        CertificateError: the statement is about other files, or an adjacency that this checker does not know.
    """
    digests = [file.manifest["digest"] for file in files]
    if list(statement["digests"]) != digests:
        raise CertificateError(f"the statement names {list(statement['digests'])}, but these files are {digests}")
    if statement["sensitivity_kind"] not in ("exact", "upper_bound"):
        raise CertificateError(f"a sensitivity of kind {str(statement['sensitivity_kind'])[:40]!r} proves nothing")
    participation, weight = dict(statement["participation"]), Fraction(float(statement["weight"]))
    if weight <= 0:
        raise CertificateError(f"the weight {statement['weight']!r} is not positive")
    one, two = (bracket_sensitivity(file.strategy(), participation) for file in files)
    low, high, reason = _pair(one, two, weight**2, participation, str(statement["adjacency"]))
    return Bracket(low, Fraction(square_root_up(high)) ** 2, reason, one.pattern, one.signs)


def _pair(
    one: Bracket, two: Bracket, weight: Fraction, participation: Mapping[str, object], adjacency: str
) -> tuple[Fraction, Fraction, str]:
    """Return bounds of the squared sensitivity of the pair, and why they hold; the weight is squared."""
    most = two.upper * weight
    if adjacency == "zero_out":
        together = one.pattern == two.pattern and set(one.signs) | set(two.signs) <= {1}
        low = one.lower + weight * two.lower if together else one.lower
        return low, one.upper + most, "one unit vector in all steps of a pattern" if together else "a sum of both"
    if adjacency != "replace_one":
        raise CertificateError(f"adjacency {adjacency!r} is not known here; use zero_out or replace_one")
    if participation != {"kind": "single"}:
        return one.lower, one.upper + most, "twice what one contribution moves"
    if one.lower >= 2 * most:
        return one.lower, one.upper, "opposite gradients have the same squares"
    # (a + 2 b)^2 / (8 b) grows with a, and with b where 2 b > a. Elsewhere it is at most a, which the sum covers.
    low = one.lower
    if one.upper <= 2 * most:
        return low, (one.upper + 2 * most) ** 2 / (8 * most), "the largest of a t + b (2 t - t^2 / 2), t in [0, 4]"
    return low, one.upper + most, "a sum of both"
