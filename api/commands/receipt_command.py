"""`factorize receipt`: what a run says of the model that it released, for tools that verify attestations."""

import json
from pathlib import Path
from typing import Annotated

from factorize.api.commands.calibrate import STOP_CONDITION
from factorize.api.terminal.output import Shown, argument, option
from factorize.api.terminal.sources import file_of, open_target, read_start
from factorize.checker.receipt import check_receipt
from factorize.encoding import JsonObject
from factorize.errors import CorruptObject, InvalidParameter, MalformedJson
from factorize.factors.factorization import Factorization
from factorize.format.quantities import ClaimRefused, at_most
from factorize.format.receipts import read_receipt, refuse_repeated, statement_of, steps_of
from factorize.format.signatures import sign_statement
from factorize.format.weights import DIRECTORY, FILE, TENSORS, digest_of_path
from factorize.training.stopped_run import epsilon_of_first_steps


def receipt(
    target: Annotated[Path, argument(metavar="RECEIPT.json", help="The receipt of a run that has ended.")],
    statement: Annotated[bool, option(help="Write the in-toto statement.")] = False,
    model: Annotated[Path | None, option(metavar="FILE", help="The weights that the receipt names.")] = None,
    private_key: Annotated[Path | None, option(metavar="KEY.pem", help="Sign it: P-256, P-384 or P-521.")] = None,
    to: Annotated[Path | None, option(metavar="FILE", help="Where it goes; stdout by default, if not signed.")] = None,
    factors: Annotated[str | None, option(metavar="FILE", help="Factors of the run: print its epsilon so far.")] = None,
    delta: Annotated[float | None, option(help="Of the epsilon so far; the run's by default.")] = None,
    store: str | None = None,
) -> Shown:
    """Write the in-toto statement that the run of a receipt released a model; factorize-check proves the receipt.

    With --factors it prints the epsilon of the steps that the run has taken so far.
    """
    if not statement and factors is None:
        message = "choose what to do with the receipt: --statement, or --factors for its epsilon so far"
        raise InvalidParameter(f"{message}; factorize-check proves it")
    if private_key is not None and to is None:
        raise InvalidParameter("a signed statement needs a file; give --to", field="to")
    try:
        given = read_start(target)
        held = read_receipt(given)
    except (MalformedJson, ClaimRefused) as reason:
        raise CorruptObject(f"{target} is not a receipt, or is damaged: {reason}") from None
    refuse_repeated(held)
    if factors is not None:
        shown = _so_far(held, open_target(factors, store), delta)
        with file_of(factors, store) as path:
            report = check_receipt(given, [path.read_bytes()])
        if not report.supported or report.unseen:
            found = (report.failed or report.not_checked)[0]
            raise CorruptObject(f"{target} does not hold, so it proves no epsilon: {found}")
        return shown
    stated = held["model"]
    if not held["steps"]["ended"] or stated is None:
        why = "names no weights" if held["steps"]["ended"] else "is of a run that has not ended"
        raise InvalidParameter(f"{target} {why}; end the run with receipt.close(model=...)", field="receipt")
    if model is None and stated["of"] == TENSORS:
        raise InvalidParameter("the receipt names tensors, but a statement names a file; give --model", field="model")
    digest = stated["sha256"]
    if model is not None:
        own = digest_of_path(model, stated["of"])
        if own != digest:
            raise CorruptObject(f"{target} names {stated['of']} of digest {digest}, but {model} has {own}")
        digest = digest_of_path(model, DIRECTORY if model.is_dir() else FILE)
    document = statement_of(held, "model" if model is None else model.name, digest)
    text = json.dumps(document, indent=2)
    if to is None:
        return document, text
    if private_key is None:
        to.write_text(text + "\n")
    else:
        sign_statement(document, private_key=private_key, to=to)
    return document, f"{to}: statement of {target} on sha256:{digest}"


def _so_far(held: JsonObject, run: Factorization, delta: float | None) -> Shown:
    """Return the epsilon of the steps that a receipt has counted."""
    named, steps = held["factors"][0]["digest"], steps_of(held)
    if run.digest != named:
        raise InvalidParameter(f"the receipt names {named}, but the factors are {run.digest}", field="factors")
    noise = held["calibration"]
    epsilon = epsilon_of_first_steps(run, noise, steps, delta, overflow_delta=held["overflow_delta"])
    document = {"epsilon_so_far": epsilon, "delta": held["delta"] if delta is None else delta, "steps": steps}
    alone = "" if held["together"] is None else " of this run alone, without the others and trials of its receipt,"
    text = f"epsilon {at_most(epsilon)} at delta {at_most(document['delta'])}{alone} after {steps} of {run.steps} steps"
    return document, f"{text}, {STOP_CONDITION}"
