"""`factorize calibrate`, `profile`, `predict`: the noise for a privacy target, what a noise is worth, exact losses."""

from pathlib import Path
from typing import Annotated

import typer

from factorize.api.pictures.views import draw_profile
from factorize.api.questions.calibration_request import CalibrationRequest, answer, read_calibration_request
from factorize.api.terminal.output import Shown, Target, argument, option
from factorize.api.terminal.sources import check_picture, open_target, read_spec_text, save_picture
from factorize.api.terminal.spec_command import options_of
from factorize.client.service import Service
from factorize.encoding import JsonObject, is_digest, read_json
from factorize.errors import InvalidParameter, InvalidSpec
from factorize.format.quantities import at_most
from factorize.plain_data import read_union
from factorize.predict import ask
from factorize.privacy.question import SamplingOptions
from factorize.samplings.calibrating import privacy_profile

STOP_CONDITION = "and holds if the stop depended neither on the data nor on what was released"


@options_of(CalibrationRequest, but=["method"])
def calibrate(
    target: Target,
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="For balls_in_bins: bounds alone, no samples, more noise.")
    ] = False,
    service: str | None = None,
    store: str | None = None,
    *,
    fields: dict[str, object],
) -> Shown:
    """Compute the standard deviation of the noise for (--epsilon, --delta), --rho or --mu.

    It is for sums of clipped contributions; with --divisor the answer has that for means too.

    With --sigma and one of --epsilon and --delta it computes the other: what a given noise is worth; with --steps, for
    the first steps of the run alone, where the stop depends neither on the data nor on what was released.

    With --sampling the epsilon counts on random batches; balls_in_bins covers every C and prints a claim that can be
    tested again, and the epsilon that holds if the bins are not secret.

    The sensitivity is recomputed from C first; a file that claims less exits with 4.
    """
    question = fields | ({"method": "deterministic"} if deterministic else {})
    if service is None:
        request = read_calibration_request(question)
        factorization = open_target(target, store)
        document = answer(factorization, request)
    elif is_digest(target):
        document = Service(service).calibrate(target, question)
    else:
        message = f"{target} is not a digest, by which a service finds results; leave out --service for a file"
        raise InvalidParameter(message, field="service")
    stopped = "" if fields.get("steps") is None else f"\nit is for the first {fields['steps']} steps, {STOP_CONDITION}"
    return document, _text(document) + stopped


def _text(document: JsonObject) -> str:
    """Return one line per number, the one to use first."""
    names = ("sigma_of_sums", "sigma_of_means", "divisor", "noise_multiplier", "sensitivity", "clip_norm", "adjacency")
    shown = [f"{name:<18}{document[name]}" for name in names if document[name] is not None]
    guarantees = ("epsilon", "delta", "rho", "mu")
    shown += [f"{name:<18}{at_most(document[name], 12)}" for name in guarantees if document[name] is not None]
    rates = (f"{at_most(most, 4)} at {float(rate):.3g}" for rate, most in document["true_positive_rates"].items())
    advantage = f"{at_most(document['attack_advantage'])}; true-positive rate at most {', '.join(rates)}"
    shown.append(f"{'attack advantage':<18}{advantage}")
    shown.append(f"the guarantee is {'exact' if document['exact'] else 'an upper bound'}")
    sampling = document["sampling"]
    amplified = "without amplification by sampling" if sampling == "fixed" else f"under {sampling} sampling"
    shown += _of_bins(document) if "claim" in document else []
    shown.append(f"sigma is the standard deviation per entry of Z, for sums of clipped contributions, {amplified}")
    if document["divisor"] is not None:
        shown.append(f"sigma_of_means is for such sums over the divisor {document['divisor']}, and never for sums")
    return "\n".join(shown)


def _of_bins(document: JsonObject) -> list[str]:
    """Return what else the answer rests on, and what is left of it without secrecy."""
    cost = document["absolute_cost"]
    shown = {
        **{name: document[name] for name in ("bins", "epochs", "method")},
        "deterministic": f"{document['deterministic_sigma']} is the sigma of the bounds without samples",
        "without secrecy": f"{at_most(document['epsilon_without_secrecy'])} is epsilon if bins, batches or their "
        "sizes become known",
        "claim": document["claim_digest"],
        "tested": f"{document['samples']} samples, {document['seconds']:.2f} s",
    }
    if cost is not None and cost > 1 + 1e-9:
        shown["|C| for C"] = f"{cost:.6g} times the sensitivity, since C has negative entries"
    lines = [f"{name:<18}{text}" for name, text in shown.items()]
    return [*lines, "rho and mu describe the noise without amplification"]


_CURVE_POINTS = 40


@options_of(CalibrationRequest, names=["clip_norm", "adjacency", "sampling", "dataset_size", "batch_size", "bins"])
def profile(
    target: Target,
    sigma: Annotated[float, option(help="Of each entry of Z, for sums.")],
    epsilons: Annotated[str | None, option(metavar="E1,E2,...", help="Default: 0.25 to 10 in steps of 0.25.")] = None,
    plot: Annotated[Path | None, option(help="Draw both curves: .png, .pdf or .svg.")] = None,
    store: str | None = None,
    *,
    fields: JsonObject,
) -> Shown:
    """Compute delta at many epsilons for a given noise, under a sampling and without; all hold at once.

    The sensitivity is recomputed from C first; a file that claims less exits with 4.
    """
    check_picture(plot)
    levels = _numbers(epsilons)
    factorization = open_target(target, store)
    request = read_union(fields | {"method": "deterministic"}, CalibrationRequest)
    options = SamplingOptions(**request.model_dump(include=set(SamplingOptions.__dataclass_fields__)))
    curve = privacy_profile(factorization, sigma=sigma, epsilons=levels, sampling=request.sampling, asked=options)
    named = {name: getattr(request, name) for name in ("sampling", "clip_norm", "adjacency")}
    document = {**named, "sigma_of_sums": sigma, "profile": curve}
    if plot is not None:
        save_picture(draw_profile(document), plot)
        document["file"] = str(plot)
    lines = [f"{'epsilon':>10}  {f'delta, {request.sampling}':>22}  {'without secrecy':>18}"]
    lines += [
        f"{at_most(point['epsilon']):>10}  {at_most(point['delta']):>22}  {at_most(point['delta_without_secrecy']):>18}"
        for point in curve
    ]
    return document, "\n".join([*lines, *([] if plot is None else [f"{plot}: picture of both curves"])])


def _numbers(text: str | None) -> list[float]:
    """Read numbers between commas.

    Raises:
        InvalidParameter: one is none.
    """
    if text is None:
        return [step / 4 for step in range(1, _CURVE_POINTS + 1)]
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        raise InvalidParameter(
            f"epsilons {text[:40]!r} must be numbers separated by commas, such as 0.5,1,2", field="epsilons"
        ) from None


def predict(
    question: Annotated[str, argument(metavar="QUESTION", help="A path, '-' for stdin, or inline JSON.")],
    factorization: Annotated[
        str | None, option(metavar="FILE|DIGEST", help="A factor file or a stored result, for questions about one.")
    ] = None,
    store: str | None = None,
) -> Shown:
    """Answer a question about a training run: exact losses on quadratics and on regression.

    Kinds of questions and their fields are in docs/choose.md.
    """
    document = read_json(read_spec_text(question))
    if not isinstance(document, dict):
        raise InvalidSpec.at("the text is JSON but not an object; write {...}", "")
    answer = ask(document, None if factorization is None else open_target(factorization, store)).document()
    lines = [f"{answer['quantity']} {answer['relation']}", f"{answer['value']:.12g}", f"basis: {answer['basis']}"]
    lines += [f"  {name:<34}{value:.9g}" for name, value in answer["terms"].items()]
    lines += [f"assumes: {text}" for text in answer["assumptions"]]
    lines += [f"note: {text}" for text in answer["notes"]]
    return answer, "\n".join([*lines, f"source: {answer['source']}"])
