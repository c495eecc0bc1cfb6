"""The receipt of a run beside its factor files: what of it is proved, what rests on the job's word, what is unknown.

It is read strictly (docs/receipt.md), and shares no arithmetic with what writes it. Sensitivity, noise multiplier, mu,
epsilon and delta are derived again from the bytes of the factors and the standard deviation of the noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from flint import ctx

from factorize.checker.arithmetic.balls import PLACES, ball, ends
from factorize.checker.arithmetic.machine import check_mode
from factorize.checker.arithmetic.near import NotEnclosed, double_below
from factorize.checker.file import FactorFile, read_factor_file
from factorize.checker.moment_pairs import bracket_of
from factorize.checker.participation import allowed
from factorize.checker.report import SENSITIVITY, Report, check_claim
from factorize.checker.sampling.calibrations import check_claim as check_sampled
from factorize.checker.sampling.losses import losses_of_samples
from factorize.checker.sampling.star import gaussian_delta
from factorize.checker.sensitivity import squared_limit, squared_sensitivity
from factorize.encoding import json_digest, read_json
from factorize.errors import CorruptObject, FactorizeError, TooLarge
from factorize.format.bins_claims import ClaimRefused, check_keys, check_means, integer, number, positive, require
from factorize.format.receipts import CALIBRATION, LOSSES, MOMENTS, SAMPLED, SCHEMA, check_chain, check_names
from factorize.format.weights import digest_of_path

FACTORS, NOISE, PRIVACY, STEPS, TOGETHER, MODEL = (
    f"receipt.{name}" for name in ("factors", "noise", "privacy", "steps", "together", "model")
)
_KEYS = {
    *("schema", "epsilon", "delta", "overflow_delta", "unit", "calibration", "factors", "data", "noise", "others"),
    *("together", "steps", "digest", "run", "model", "loss"),
}
_STEPS = {"processes", "chain", "ended", "unpublished", "participations", "separation"}
_FACTOR = {"zero_out": 1, "replace_one": 2}
_Document = Mapping[str, Any]


def check_receipt(text: bytes, files: Sequence[bytes], *, model: Path | None = None) -> Report:
    """Check a receipt against the factor files that it names.

    Args:
        text: the receipt, JSON.
        files: the factor file; for first and second moments with noise of their own both, in the receipt's order.
        model: the released weights, to be compared with their digest in the receipt.

    Returns:
        The report: `supported` says whether nothing failed, `not_checked` what rests on the job's word.

    Raises:
        OSError: the model cannot be read.
        CorruptObject: the bytes of a factor file disagree with their digests.
        TooLarge: the sensitivity cannot be evaluated at this size.
    """
    report = Report(stated=(FACTORS, SENSITIVITY, NOISE, PRIVACY, STEPS))
    try:
        check_mode()
        receipt = _read(text)
        opened = [read_factor_file(data) for data in files]
        _check_files(report, receipt, opened)
        mu = _check_noise(report, receipt, opened)
        _check_privacy(report, receipt, opened[0], mu)
        _check_steps(report, receipt["steps"], opened[0].steps)
        check_chain(receipt["run"], receipt["steps"])
        report.prove("each process names the state of the run that it continued", of=STEPS)
        _check_counts(report, receipt, opened[0].steps)
        _check_together(report, receipt, mu)
        _check_model(report, receipt["model"], model)
        _say_what_is_left(report, receipt)
    except NotEnclosed as reason:
        report.leave(str(reason), of=report.stated)
    except (TooLarge, CorruptObject):
        raise
    except (ClaimRefused, FactorizeError) as reason:
        report.refute(str(reason))
    except (KeyError, TypeError, AttributeError, ValueError, IndexError, ArithmeticError) as error:
        report.refute(f"the receipt is none: {type(error).__name__}: {str(error)[:200]}")
    return report


def _read(text: bytes) -> dict[str, Any]:
    """Return a receipt whose digest is its own and whose keys are those of the page."""
    receipt = read_json(text)
    require(isinstance(receipt, dict), "the receipt is no JSON object")
    require(receipt.get("schema") == SCHEMA, f"the schema {str(receipt.get('schema'))[:40]!r} is not {SCHEMA}")
    check_keys("the receipt", receipt, _KEYS)
    own = json_digest({name: value for name, value in receipt.items() if name != "digest"})
    require(receipt["digest"] == own, f"the receipt hashes to {own}, and states {str(receipt['digest'])[:80]!r}")
    calibration = receipt["calibration"]
    sampled = SAMPLED.get(calibration["sampling"])
    if sampled is None:
        raise ClaimRefused(f"the sampling {str(calibration['sampling'])[:40]!r} is none of {', '.join(SAMPLED)}")
    pair = MOMENTS if len(receipt["factors"]) == 2 else set[str]()
    require(not (pair and sampled), "two moments have noise of their own in a fixed order only")
    check_keys("its calibration", calibration, CALIBRATION | sampled | pair)
    check_keys("its data", receipt["data"], {"examples", "used"})
    check_keys("its noise", receipt["noise"], {"generator", "dtype", "ranks", "commitments"})
    check_keys("its steps", receipt["steps"], _STEPS, {"refused"})
    check_names(receipt)
    integer(receipt["data"], "used", 1, integer(receipt["data"], "examples", 1, 1 << 53))
    integer(receipt["noise"], "ranks", 1, 1 << 20)
    require(receipt["noise"]["dtype"] in ("float32", "float64"), "the noise is neither in float32 nor in float64")
    require(receipt["unit"] in ("example", "user"), f"the unit {str(receipt['unit'])[:40]!r} is not example or user")
    require(calibration["adjacency"] in _FACTOR, f"the adjacency {str(calibration['adjacency'])[:40]!r} is not known")
    return dict(receipt)


def _check_files(report: Report, receipt: _Document, files: Sequence[FactorFile]) -> None:
    stated = receipt["factors"]
    require(
        len(stated) in (1, 2) and len(stated) == len(files),
        f"the receipt is of {len(stated)} factor files, and {len(files)} are given",
    )
    for entry, file in zip(stated, files, strict=True):
        check_keys("an entry of its factors", entry, {"digest", "spec"})
        own = file.manifest["digest"]
        require(entry["digest"] == own, f"the receipt is of the factors {str(entry['digest'])[:80]}, the file is {own}")
        require(entry["spec"] == file.manifest["spec"], f"the receipt states another spec than the file {own}")
    report.prove(
        "the factor file is the one that the receipt names, byte by byte, for the spec that it states", of=FACTORS
    )


def _check_noise(report: Report, receipt: _Document, files: Sequence[FactorFile]) -> Fraction:
    """Prove the sensitivity and what follows from it and sigma; return mu from above."""
    stated = receipt["calibration"]
    _check_sensitivity(report, stated, files)
    sigma, clip = positive(stated, "sigma_of_sums"), positive(stated, "clip_norm")
    largest = positive(stated, "sensitivity") * clip * _FACTOR[stated["adjacency"]]
    multiplier, mu = positive(stated, "noise_multiplier"), positive(stated, "mu")
    means = [("sigma_of_sums", "sigma_of_means")]
    if len(files) == 2:
        means.append(("second_sigma_of_sums", "second_sigma_of_means"))
        second, needed = positive(stated, "second_sigma_of_sums"), sigma * clip / positive(stated, "weight")
        report.require(
            second >= needed,
            "the noise of the squares has at least the standard deviation that their weight asks for",
            f"second_sigma_of_sums {float(second)!r} is below {float(needed)!r}, which the weight asks for",
            of=NOISE,
        )
    report.require(
        multiplier * largest <= sigma and mu * sigma >= largest,
        f"sigma_of_sums {float(sigma)!r} is at least {float(multiplier):.6g} times the most that one {receipt['unit']} "
        f"moves C G, {float(largest):.6g}: without sampling the run is {float(mu):.6g}-GDP",
        f"sigma_of_sums {float(sigma)!r} is {float(sigma / largest):.6g} times the most that one {receipt['unit']} "
        f"moves C G; the receipt states a noise multiplier of {float(multiplier)!r} and mu {float(mu)!r}",
        of=NOISE,
    )
    for sums, name in means:
        check_means(stated, name, positive(stated, sums))
    return largest / sigma


def _check_sensitivity(report: Report, stated: _Document, files: Sequence[FactorFile]) -> None:
    kind, file = stated["sensitivity_kind"], files[0]
    require(kind in ("exact", "upper_bound"), f"a sensitivity of kind {str(kind)[:40]!r} proves nothing")
    if len(files) == 2:
        bracket = bracket_of(files, stated)
    elif file.steps is None:
        structure = file.manifest["matrices"]["C"]["structure"]
        bracket = squared_limit(structure, file.matrices["C"], stated["participation"])
    else:
        strategy = file.strategy()
        if stated["sampling"] == "cyclic_poisson":
            groups = integer(stated, "groups", 1, 1 << 53)
            require(strategy.bandwidth <= groups, f"C has {strategy.bandwidth} bands, more than its {groups} groups")
        bracket = squared_sensitivity(strategy, stated["participation"])
    check_claim(report, bracket, float(positive(stated, "sensitivity")), kind=kind)


def _check_privacy(report: Report, receipt: _Document, file: FactorFile, mu: Fraction) -> None:
    """Prove epsilon and delta of the calibration, and those of the receipt from them."""
    stated = receipt["calibration"]
    epsilon, delta = number(stated, "epsilon"), number(stated, "delta")
    require(0 < delta < 1, f"delta {float(delta)!r} is not between 0 and 1")
    overflow = number(receipt, "overflow_delta")
    report.require(
        number(receipt, "epsilon") == epsilon and number(receipt, "delta") >= delta + overflow,
        "epsilon is the calibration's, and delta at least the calibration's and what the capacity of batches adds",
        f"the receipt states ({receipt['epsilon']!r}, {receipt['delta']!r}), and its calibration with what the "
        f"capacity adds is ({stated['epsilon']!r}, {float(delta + overflow)!r})",
        of=PRIVACY,
    )
    if overflow:
        report.leave(f"the {float(overflow):.3g} of delta that batches of limited capacity add: the job's word")
    sampling = stated["sampling"]
    if sampling == "fixed":
        proved = (
            f"({float(epsilon):g}, {float(delta):g})-DP of the Gaussian mechanism with this noise, exactly computed"
        )
        otherwise = f"({float(epsilon):g}, {float(delta):g}) is not reached: at this noise delta is above"
        report.require(_gaussian_delta(epsilon, mu) <= delta, proved, otherwise, of=PRIVACY)
    elif sampling == "cyclic_poisson":
        _check_samples(report, stated, file, mu)
    else:
        _check_bins(report, stated, file)


def _check_samples(report: Report, stated: _Document, file: FactorFile, mu: Fraction) -> None:
    """Prove epsilon where each step samples from one group of examples after the other, each example for itself."""
    n = file.steps
    require(
        n is not None and stated["adjacency"] == "zero_out", "Poisson sampling is for runs with an end, and zero_out"
    )
    groups, steps = (integer(stated, name, 1, 1 << 53) for name in ("groups", "compositions"))
    require(steps * groups >= int(n or 0), f"{steps} steps of {groups} groups are fewer than n={n}")
    probability, largest = positive(stated, "sampling_probability"), positive(stated, "largest_column")
    require(probability <= 1, f"the sampling probability {float(probability)!r} is above 1")
    columns = squared_sensitivity(file.strategy(), {"kind": "single"})
    require(largest**2 >= columns.upper, f"a column of C has a norm above the {float(largest)!r} that is stated")
    scale = double_below(positive(stated, "sigma_of_sums") / positive(stated, "clip_norm"))
    losses = losses_of_samples(largest**2, scale, float(probability), steps)
    epsilon, delta = float(stated["epsilon"]), number(stated, "delta")
    above = max(ends(bound(epsilon))[1] for bound in (losses.removal, losses.addition))
    above = min(above, _gaussian_delta(number(stated, "epsilon"), mu))
    report.require(
        above <= delta,
        f"delta at epsilon {epsilon:g} is at most {float(above):.6g}, by the losses on a grid or without sampling",
        f"delta {float(delta)!r} at epsilon {epsilon:g} is not proved: the loss distribution gives {float(above):.6g}",
        of=PRIVACY,
    )
    text = f"the sampling: that each step draws each example of its group with probability {float(probability):.6g}"
    report.leave(f"{text}, independently and in secret, is the job's word")


def _check_bins(report: Report, stated: _Document, file: FactorFile) -> None:
    """Test the claim that the calibration rests on."""
    most = allowed(stated["participation"], file.steps).most
    require(most >= stated["epochs"], f"its participation allows {most} steps, and it has {stated['epochs']} epochs")
    tested = check_sampled(file.manifest["digest"], file.strategy, stated)
    for text in tested.checked:
        report.prove(text, of=PRIVACY)
    for text in tested.failed:
        report.refute(text, of=PRIVACY)
    report.not_checked += tested.not_checked[:-1]  # the last is of the file's claims, which are checked here


def _check_steps(report: Report, stated: _Document, n: int | None) -> None:
    """Count the steps of all processes: each once, or the job's word that what was taken twice was not seen."""
    processes, taken = stated["processes"], 0
    require(
        isinstance(stated["ended"], bool) and isinstance(stated["unpublished"], bool),
        "ended and unpublished are true or false",
    )
    for first, last in processes:
        whole = all(isinstance(step, int) and not isinstance(step, bool) for step in (first, last))
        require(whole and 0 <= first < last, f"a process took steps {first!r} to {last!r}, which are none")
        require(first <= taken, f"steps {taken} to {first} were left out: the noise of later steps counts on them")
        if first < taken:
            twice = f"steps {first} to {min(last, taken)} were taken twice, with the same noise"
            refusal = f"{twice}: two releases may differ by gradients alone, unless nobody saw the first"
            require(stated["unpublished"], refusal)
            report.leave(f"{twice}; that nobody saw what the first process released is the job's word")
        taken = max(taken, last)
    report.require(
        n is None or taken <= n,
        f"{taken} steps were taken, of {'any number' if n is None else n} that the guarantee covers",
        f"{taken} steps were taken, and the guarantee covers {n}",
        of=STEPS,
    )
    for reason in stated.get("refused", {}):
        count = integer(stated["refused"], reason, 1, 1 << 53)
        report.leave(f"that {count} contributions were refused ({reason[:40]}) and count as zeros: the job's word")
    report.open = not stated["ended"]
    if report.open:
        report.leave("steps after those of the receipt: the run has not ended")


def _check_counts(report: Report, receipt: _Document, n: int | None) -> None:
    """Compare what the auditor counted with the participation; bins have an auditor of their own, which counts none."""
    steps, participation = receipt["steps"], receipt["calibration"]["participation"]
    if steps["participations"] is None:
        binned = "bins" in receipt["calibration"]
        require(binned and steps["separation"] is None, "the receipt does not say how often an example took part")
        return
    form = allowed(participation, n)
    most = integer(steps, "participations", 0, 1 << 53)
    apart = None if steps["separation"] is None else integer(steps, "separation", 1, 1 << 53)
    require(
        (apart is None) == (most < 2),
        f"{most} participations of an example, {apart} steps apart, contradict each other",
    )
    fits = most <= form.most and (apart is None or apart >= form.separation)
    report.require(
        fits,
        f"nobody took part more than {most} times, or less than {apart} steps apart: the participation allows it",
        f"somebody took part {most} times, {apart} steps apart, and the sensitivity is for {dict(participation)}",
        of=STEPS,
    )


def _check_together(report: Report, receipt: _Document, mu: Fraction) -> None:
    """Prove what the run and the others on the same data guarantee, if it is stated."""
    others, together = receipt["others"], receipt["together"]
    require(isinstance(others, list) and (together is None) == (not others), "what all runs guarantee is not stated")
    if together is None:
        return
    require(receipt["calibration"]["sampling"] == "fixed", "runs compose by mu in a fixed order only")
    report.stated = (*report.stated, TOGETHER)
    check_keys("together", together, {"mu", "epsilon", "delta"})
    squares = mu**2
    for other in others:
        check_keys("another run", other, {"name", "mu"})
        squares += positive(other, "mu") ** 2
    all_of_it, delta = positive(together, "mu"), number(together, "delta")
    report.require(
        all_of_it**2 >= squares and _gaussian_delta(number(together, "epsilon"), all_of_it) <= delta,
        f"with {len(others)} other runs the data have ({together['epsilon']:.6g}, {together['delta']:g})-DP",
        f"{len(others)} other runs and this one are not ({together['epsilon']!r}, {together['delta']!r})-DP together",
        of=TOGETHER,
    )
    report.leave("what the other runs released, and that there were no more of them: the job's word")


def _check_model(report: Report, stated: _Document | None, model: Path | None) -> None:
    """Compare the released weights with the digest of the receipt, if they are given."""
    report.stated += (MODEL,) * (model is not None)
    if model is None or stated is None:
        missing = "none are given" if stated else "the receipt names none"
        report.leave(f"which weights the run released: {missing}", of=[MODEL])
        return
    own, named = digest_of_path(model, stated["of"]), f"the receipt names {stated['of']} of digest {stated['sha256']}"
    report.require(own == stated["sha256"], f"{named}, as {model} has", f"{named}, and {model} has {own}", of=MODEL)


def _say_what_is_left(report: Report, receipt: _Document) -> None:
    clip, unit = receipt["calibration"]["clip_norm"], receipt["unit"]
    report.aside = ", and the loss was not looked at" * (receipt["loss"] == "not_looked_at")
    report.leave(LOSSES[receipt["loss"]])
    if not receipt["noise"]["commitments"]:
        report.leave("whether another run used the same noise: the receipt does not commit to its own")
    report.leave(f"clipping: that one {unit} contributed at most {clip:g} to each step is the job's word")
    report.leave("the order: the auditor saw the batches that the job gave it; that these were trained on is its word")
    report.leave(
        "the noise: that its seed is secret and unguessable, and its normals are independent, is the job's word"
    )
    report.leave("unknown: how hyperparameters were chosen, and what else was released of these data")


def _gaussian_delta(epsilon: Fraction, mu: Fraction) -> Fraction:
    """Return delta of a mu-GDP Gaussian mechanism at epsilon >= 0, from above."""
    with ctx.workprec(PLACES):
        return ends(gaussian_delta(ball(epsilon), ball(mu)))[1]
