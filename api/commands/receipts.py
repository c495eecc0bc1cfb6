"""`factorize receipt`: what a run says of the model that it released, for tools that verify attestations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

from factorize.api.terminal.output import Shown, argument, option
from factorize.errors import CorruptObject, InvalidParameter, MalformedJson


def receipt(
    target: Annotated[Path, argument(metavar="RECEIPT.json", help="The receipt of a run that has ended.")],
    statement: Annotated[bool, option(help="Write the in-toto statement.")] = False,
    model: Annotated[Path | None, option(metavar="FILE", help="The weights that the receipt names.")] = None,
    private_key: Annotated[Path | None, option(metavar="KEY.pem", help="Sign it: P-256, P-384 or P-521.")] = None,
    to: Annotated[Path | None, option(metavar="FILE", help="Where it goes; stdout by default, if not signed.")] = None,
) -> Shown:
    """Write the in-toto statement that the run of a receipt released a model; factorize-check proves the receipt."""
    from factorize.format.quantities import ClaimRefused
    from factorize.format.receipts import read_receipt, statement_of
    from factorize.format.weights import DIRECTORY, FILE, TENSORS, digest_of_path
    from factorize.signatures import sign_statement

    if not statement:
        raise InvalidParameter("say what to make of the receipt: --statement; factorize-check proves it")
    if private_key is not None and to is None:
        raise InvalidParameter("a signed statement goes into a file; give --to", field="to")
    try:
        held = read_receipt(target.read_bytes())
    except (MalformedJson, ClaimRefused) as reason:
        raise CorruptObject(f"{target} is no receipt, or a damaged one: {reason}") from None
    stated = held["model"]
    if not held["steps"]["ended"] or stated is None:
        why = "names no weights" if held["steps"]["ended"] else "is of a run that has not ended"
        raise InvalidParameter(f"{target} {why}; end the run with receipt.close(model=...)", field="receipt")
    if model is None and stated["of"] == TENSORS:
        raise InvalidParameter("the receipt names tensors, and a statement a file; give --model", field="model")
    digest = stated["sha256"]
    if model is not None:
        own = digest_of_path(model, stated["of"])
        if own != digest:
            raise CorruptObject(f"{target} names {stated['of']} of digest {digest}, and {model} has {own}")
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
