"""The receipt of a run as a file states it: its keys, the values that each may have, and the one strict reader.

Receipts that are written, continued or proved go through `read_receipt`, which does not say whether a receipt is true.
Texts come from closed lists, but for digests, specs (which are compared with the factor
files) and names of other runs.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from factorize.encoding import JsonObject, is_digest, json_digest, read_json
from factorize.errors import InvalidParameter, InvalidParticipation
from factorize.format.quantities import ClaimRefused, check_keys, integer, number, require
from factorize.format.weights import KINDS
from factorize.participation import read_participation

SCHEMA = "factorize.receipt/2"
PREDICATE = "urn:factorize:receipt:2"
"""The type of an in-toto predicate that is a receipt."""
LOSSES = {
    "per_example": "the loss: the job states that it is one for each example, and compared this before the first step",
    "rehearsed": "the loss: the job states, and rehearsed with one batch, that examples change no others' gradients",
    "per_client": "the loss: the job states that a client makes its update from its own data alone",
    "not_looked_at": "the loss: nobody checked whether examples change the gradients of others; if so, nothing holds",
}
"""The ways in which a job checked its loss, and the part of each that is not proved."""
UNITS = ("example", "user")
GENERATORS = ("sfc64", "shake128", "threefry2x32", "torch")
REFUSALS = (
    *("too early", "not admitted", "twice", "shape", "type", "not finite", "no client id", "same client id"),
    *("another type of id", "fleet is full"),
)
"""The reasons for which a server refuses a contribution."""
Reader = Callable[[Mapping[str, Any], str], object]
Shape = Mapping[str, "Reader | Shape"]


def among(*values: object) -> Reader:
    """Return a reader of one of a few values."""

    def read(given: Mapping[str, object], name: str) -> None:
        value = given[name]
        fits = any(type(value) is type(each) and value == each for each in values)
        require(fits, f"{name} is {str(value)[:40]!r}, not one of {', '.join(map(str, values))}")

    return read


def or_null(read: Reader) -> Reader:
    """Return a reader of null, and of everything that another one reads."""
    return lambda given, name: None if given[name] is None else read(given, name)


def list_of(read: Reader) -> Reader:
    """Return a reader of a list, whose entries another one reads."""

    def read_all(given: Mapping[str, Any], name: str) -> None:
        require(isinstance(given[name], list), f"{name} is {str(given[name])[:40]!r}, not a list")
        for entry in given[name]:
            read({name: entry}, name)

    return read_all


def object_of(shape: Shape) -> Reader:
    """Return a reader of an object of a shape."""
    return lambda given, name: _read_shape(name, given[name], shape)


def _digest(given: Mapping[str, object], name: str) -> None:
    require(is_digest(given[name]), f"{name} is {str(given[name])[:40]!r}, not a sha256 in hexadecimal digits")


def _claim_digest(given: Mapping[str, object], name: str) -> None:
    text = given[name]
    known = isinstance(text, str) and text.startswith("sha256:") and is_digest(text.removeprefix("sha256:"))
    require(known, f"{name} is {str(text)[:40]!r}; it must be sha256: and 64 hexadecimal digits")


def _text(given: Mapping[str, Any], name: str) -> None:
    fits = isinstance(given[name], str) and 0 < len(given[name]) <= 200
    require(fits, f"{name} is {str(given[name])[:40]!r}; it must be a text of 1 to 200 characters")


def _any_object(given: Mapping[str, object], name: str) -> None:
    require(isinstance(given[name], dict), f"{name} is {str(given[name])[:40]!r}, not an object")


def _participation(given: Mapping[str, Any], name: str) -> None:
    _any_object(given, name)
    try:
        read_participation(given[name])
    except InvalidParticipation as reason:
        raise ClaimRefused(str(reason)) from None


def _process(given: Mapping[str, Any], name: str) -> None:
    steps = given[name]
    whole = isinstance(steps, list) and len(steps) == 2 and all(type(step) is int for step in steps)
    text = f"the steps {str(steps)[:40]} of a process must be its first step and the one after its last"
    require(whole and 0 <= steps[0] < steps[1], text)


def _check_refused(given: Mapping[str, Any], name: str) -> None:
    _any_object(given, name)
    for reason in given[name]:
        require(reason in REFUSALS, f"{name} counts {reason[:40]!r}, which is not one of {', '.join(REFUSALS)}")
        integer(given[name], reason)


_FLAG, _COUNT = among(True, False), partial(integer, least=0)
CALIBRATION: Shape = {
    **dict.fromkeys(
        ("noise_multiplier", "sigma_of_sums", "clip_norm", "epsilon", "delta", "mu", "sensitivity"), number
    ),
    "sigma_of_means": or_null(number),
    "divisor": or_null(integer),
    "adjacency": among("zero_out", "replace_one"),
    "sensitivity_kind": among("exact", "upper_bound"),
    "participation": _participation,
}
"""The fields of every calibration beside its sampling, from which its other fields follow."""
_BINS: Shape = {
    "bins": integer,
    "epochs": integer,
    "epsilon_without_secrecy": number,
    "claim": _any_object,
    "claim_digest": _claim_digest,
}
_GROUPS: Shape = {
    **dict.fromkeys(("groups", "compositions", "dataset_size", "batch_size"), integer),
    **dict.fromkeys(("sampling_probability", "largest_column"), number),
}
SAMPLING_SHAPES: dict[str, Shape] = {
    "fixed": {},
    "cyclic_poisson": _GROUPS,
    "balls_in_bins": _BINS,
    "random_allocation": _BINS,
    "b_min_sep": {**_BINS, "sampling_probability": number, "dataset_size": integer, "batch_size": integer},
}
"""The further fields of a calibration, by sampling."""
MOMENTS: Shape = {
    "second_sigma_of_sums": number,
    "second_sigma_of_means": or_null(number),
    "weight": number,
    "digests": list_of(_digest),
}
"""The further fields of a calibration where the squares of gradients have noise of their own."""
_SHAPE: Shape = {
    "schema": among(SCHEMA),
    "run": _digest,
    "epsilon": number,
    "delta": number,
    "overflow_delta": number,
    "unit": among(*UNITS),
    "loss": among(*LOSSES),
    "calibration": _any_object,  # Its sampling decides its shape.
    "factors": list_of(object_of({"digest": _digest, "spec": _any_object})),
    "data": {"examples": integer, "used": integer, "users": or_null(integer)},
    "noise": {
        "generator": among(*GENERATORS),
        "dtype": among("float32", "float64"),
        "ranks": integer,
        "commitments": list_of(_digest),
    },
    "others": list_of(object_of({"name": _text, "mu": number})),
    "together": or_null(object_of({"mu": number, "epsilon": number, "delta": number})),
    "model": or_null(object_of({"of": among(*KINDS), "sha256": _digest})),
    "steps": {
        "processes": list_of(_process),
        "chain": list_of(object_of({"process": _digest, "previous": or_null(_digest)})),
        "ended": _FLAG,
        "unpublished": _FLAG,
        "counted": {"unit": among(*UNITS), "number": or_null(_COUNT), "contributions": or_null(_COUNT)},
        **dict.fromkeys(("participations", "separation", "period"), or_null(_COUNT)),
    },
    "digest": _digest,
}
_OPTIONAL: dict[str, Shape] = {
    "the receipt": {"trials": {"mean": number, "surplus": number}},
    "steps": {"refused": _check_refused},
}


_CHANGING = {"steps", "model", "digest"}
"""The fields of a receipt that change while its run goes on."""


def read_receipt(text: bytes) -> JsonObject:
    """Return a receipt whose digest is its own, with the keys of docs/receipt.md and values that each may have.

    Raises:
        MalformedJson: the text is no JSON.
        ClaimRefused: the text is no receipt; the message names the field.
    """
    receipt = read_json(text)
    require(isinstance(receipt, dict), "the receipt is not a JSON object")
    schema = receipt.get("schema")
    require(schema == SCHEMA, f"the schema {str(schema)[:40]!r} is not {SCHEMA}, that of this release")
    _read_shape("the receipt", receipt, _SHAPE)
    own = json_digest({name: value for name, value in receipt.items() if name != "digest"})
    require(receipt["digest"] == own, f"the receipt hashes to {own}, but states {receipt['digest']}")
    commitments = receipt["noise"]["commitments"]
    one_each = len(set(commitments)) == len(commitments) and len(commitments) in (0, len(receipt["factors"]))
    require(one_each, "the receipt does not commit to one noise for each of its factors")
    require(receipt["steps"]["ended"] or receipt["model"] is None, "a run that has ended states its model's digest")
    require(len(receipt["factors"]) in (1, 2), f"a receipt names 1 or 2 factor files, not {len(receipt['factors'])}")
    calibration, both = receipt["calibration"], len(receipt["factors"]) == 2
    sampled = calibration.get("sampling")
    shape = SAMPLING_SHAPES.get(sampled) if isinstance(sampled, str) else None
    if shape is None:
        raise ClaimRefused(f"the sampling {str(sampled)[:40]!r} is not one of {', '.join(SAMPLING_SHAPES)}")
    require(not (both and shape), "two moments have noise of their own in a fixed order only")
    known = {"sampling": among(*SAMPLING_SHAPES)}
    _read_shape("calibration", calibration, {**CALIBRATION, **known, **shape, **(MOMENTS if both else {})})
    _check_units(receipt)
    _check_releases(receipt, sampled)
    if sampled == "fixed":
        require(not receipt["overflow_delta"], "a fixed order has no batches that overflow")
        _check_counts(receipt)
    else:
        _check_secret(receipt)
    return dict(receipt)


def _check_units(receipt: JsonObject) -> None:
    """Compare the units that are protected, that are in the data, and that were counted."""
    unit, data, counted = receipt["unit"], receipt["data"], receipt["steps"]["counted"]["unit"]
    most = max(data["used"], data["users"] or 0)
    require(
        most <= data["examples"], f"{most} examples or users took part, but there are only {data['examples']} examples"
    )
    require(
        (unit == "user") == (data["users"] is not None),
        f"the unit is one {unit}, but the number of users is {data['users']}",
    )
    require(counted == unit, f"the unit is one {unit}, but the auditor counted {counted}s")


def _check_releases(receipt: JsonObject, sampled: str) -> None:
    """Compare further releases from the data with the guarantee that is stated for all of them."""
    others, together = receipt["others"], receipt["together"]
    alone = others == [] and "trials" not in receipt
    require((together is None) == alone, "`together` must be stated if, and only if, other runs or trials are")
    require(alone or sampled == "fixed", "runs compose by mu in a fixed order only")
    names = {other["name"] for other in others}
    require(len(names) == len(others), f"{len(others)} other runs have {len(names)} names")


def _counts(receipt: JsonObject) -> JsonObject:
    steps = receipt["steps"]
    names = ("participations", "separation", "period")
    counted = {name: steps["counted"][name] for name in ("number", "contributions")}
    return counted | {name: steps[name] for name in names}


def _check_counts(receipt: JsonObject) -> None:
    """Compare the auditor's counts with each other and with the data."""
    number_of, contributions, most, apart, period = _counts(receipt).values()
    require(None not in (number_of, contributions, most), "the receipt does not say how often an example took part")
    units = receipt["data"]["users"] or receipt["data"]["used"]
    stated = ", ".join(f"{name} {count}" for name, count in _counts(receipt).items() if count is not None)
    require(
        (apart is not None) == (period is not None) == (most > 1),
        f"{stated} contradict each other: distances are known where, and only where, somebody took part twice",
    )
    require(
        number_of + most - 1 <= contributions <= number_of * most and number_of <= units,
        f"{stated} contradict each other, or the {units} that there are",
    )
    multiple = apart is None or (0 < period <= apart and apart % period == 0)
    require(multiple, f"{stated} contradict each other: the least distance is a multiple of the period")


def _check_secret(receipt: JsonObject) -> None:
    """Refuse fields that a secret order may not state, and compare the probability of a step with the data."""
    stated, examples = receipt["calibration"], receipt["data"]["users"] or receipt["data"]["examples"]
    shown = [name for name, count in _counts(receipt).items() if count is not None]
    require(not shown, f"{shown[:1]} is stated, but the order is secret, and counts show what was drawn")
    require(
        receipt["noise"]["ranks"] == 1, "several ranks tell each other their batches, but this order must be secret"
    )
    require(stated["adjacency"] == "zero_out", "a secret order supports the adjacency zero_out only")
    if "batch_size" in stated:
        batch, size, parts = stated["batch_size"], stated["dataset_size"], stated.get("groups", stated.get("bins"))
        known = f"{size} examples in {parts} groups and batches of {batch}"
        require(size <= examples, f"{known} are not of {examples} examples")
        group = size // parts if "groups" in stated else size - (parts - 1) * batch  # These examples may be drawn.
        same = batch <= group and stated["sampling_probability"] == batch / group
        require(same, f"{known} do not make the sampling probability {stated['sampling_probability']!r}")


def statement_of(receipt: Mapping[str, object], name: str, sha256: str) -> JsonObject:
    """Return the in-toto statement that a model was released by the run of a receipt.

    Args:
        receipt: the receipt as it was read.
        name: name of the model.
        sha256: digest of its file, or the root digest of its directory.
    """
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": name, "digest": {"sha256": sha256}}],
        "predicateType": PREDICATE,
        "predicate": dict(receipt),
    }


def link_of(run: str, process: Mapping[str, object], taken: Sequence[int]) -> str:
    """Return the digest by which a process names the one that it continues.

    Args:
        run: the name of the run.
        process: the earlier process's own entry of the chain, with the digest of the one before it.
        taken: its first step, and the step after its last.
    """
    return json_digest({"run": run, **process, "steps": list(taken)})


def check_chain(run: str, steps: Mapping[str, Any]) -> None:
    """Refuse a chain in which a process does not name the one before it.

    Raises:
        ClaimRefused: the chain is broken.
    """
    chain, before = steps["chain"], None
    require(len(chain) == len(steps["processes"]), "the receipt does not say which process took which steps")
    for process, taken in zip(chain, steps["processes"], strict=True):
        require(process["previous"] == before, f"the process {process['process']} does not continue the one before it")
        before = link_of(run, process, taken)


def is_state_of(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether the second of two receipts of one run was once in the state of the first, by its links."""
    if one["steps"]["ended"]:
        return bool(one["digest"] == other["digest"])
    if any(one.get(name) != other.get(name) for name in {*one, *other} - _CHANGING):
        return False
    (mine, own), (theirs, longer) = ((each["steps"]["processes"], each["steps"]["chain"]) for each in (one, other))
    count = len(own)
    last = zip(mine[-1:], theirs[:count][-1:], strict=False)  # The links compare the processes before it.
    return bool(own == longer[:count] and all(here[0] == there[0] and here[1] <= there[1] for here, there in last))


def steps_of(receipt: JsonObject) -> int:
    """Return the steps that all processes together have taken."""
    return max((last for _, last in receipt["steps"]["processes"]), default=0)


def repetitions_of(receipt: JsonObject) -> list[tuple[int, int]]:
    """Return the steps that one process took after another had: the first of each, and the one after the last."""
    found, taken = [], 0
    for first, last in receipt["steps"]["processes"]:
        if first < taken:
            found.append((first, min(last, taken)))
        taken = max(taken, last)
    return found


def refuse_repeated(receipt: JsonObject) -> None:
    """Refuse a run with two releases of one noise, which no epsilon covers.

    Raises:
        InvalidParameter: steps were taken again, and the job does not state that nobody saw the first release.
    """
    again = repetitions_of(receipt)
    if again and not receipt["steps"]["unpublished"]:
        raise InvalidParameter(
            f"steps {again[0][0]} to {again[0][1]} were taken twice with the same noise, so no epsilon holds: the "
            "difference of the two releases shows gradients. If nobody saw the first, say so when the run continues: "
            "Receipt(path, unpublished=True)",
            field="receipt",
        )


def _read_shape(name: str, given: Any, shape: Shape) -> None:
    optional = _OPTIONAL.get(name, {})
    check_keys(name, given, set(shape), set(optional))
    for key, read in {**shape, **optional}.items():
        if key not in given:
            continue
        if isinstance(read, Mapping):
            _read_shape(key, given[key], read)
        else:
            read(given, key)
