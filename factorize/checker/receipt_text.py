"""The report on a receipt in words: for a terminal, for a model card, and in the order of NIST SP 800-226.

A receipt also drafts its entry in the Differential Privacy Deployments Registry.

Reference:
    Nanayakkara, Ghazi and Vadhan 2025 (arXiv 2509.13509); the schema of opendp/deployments-registry-data of 15 July
    2026, tier 3. JSON is YAML, the form of the registry.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from factorize.checker.report import Report

_STATUS = {"proved": "proved", "false": "FALSE", "not_looked_at": "NOT LOOKED AT"}
_NEIGHBOURS = {
    "zero_out": "one {unit}'s contributions become zero; batches and divisors stay",
    "replace_one": "one {unit}'s contributions are replaced by those of another",
}
_ORDER = {
    "fixed": "public: the guarantee does not rest on a secret order",
    "cyclic_poisson": "secret: Poisson sampling from one group of examples after the other",
    "balls_in_bins": "secret: each example draws its step of an epoch once",
    "random_allocation": "secret: each example draws its step in every epoch anew",
}

_NONE = "not in the receipt"
_QUESTIONS = {
    "Privacy parameters: how strong is the guarantee?": ("Guarantee", "Without sampling"),
    "Unit of privacy: whose data are protected?": ("Privacy unit",),
    "Definition: which data sets are neighbours?": ("Neighbouring data sets",),
    "Algorithm: which mechanism, and why is it correct?": ("Mechanism", "Sensitivity of C", "Factors"),
    "Machine learning: clipping, sampling, steps": ("Order of the data", "Steps"),
    "Composition: what else was released of these data?": ("Other runs on these data",),
    "Utility and bias: how accurate is the model, and for whom?": (),
    "Hyperparameters: how were they chosen?": (),
    "Trust model: who sees the data?": ("Trust model",),
    "Implementation: floating point and randomness": ("Randomness",),
    "Side channels: does time or memory tell of the data?": (),
    "Data security and access control": (),
    "Exposure in collecting the data": (),
}
"""What the guideline asks, from the top of its pyramid to the bottom, and the rows that answer."""


def text(report: Report) -> str:
    """Return the report for a terminal."""
    head = "verified" if report.supported and not report.unseen else "NOT ALL SEEN"
    lines = [head if report.supported else "NOT SUPPORTED"]
    lines += [f"{_STATUS[entry['status']]:15}{entry['claim']}: {entry['why']}" for entry in report.claims]
    lines += [f"{'failed':15}{sentence}" for sentence in report.failed]
    return "\n".join([*lines, *(f"{'not checked':15}{sentence}" for sentence in report.not_checked)])


def answers(receipt: Mapping[str, Any]) -> dict[str, str]:
    """Return what a receipt that holds says, each in a phrase by the name of its row."""
    calibration, unit, steps = receipt["calibration"], receipt["unit"], receipt["steps"]
    relation, sigma = calibration["adjacency"], calibration["sigma_of_sums"]
    taken = max((last for _, last in steps["processes"]), default=0)
    together = receipt["together"]
    return {
        "Guarantee": f"({receipt['epsilon']:g}, {receipt['delta']:g})-differential privacy",
        "Privacy unit": f"one {unit} of {receipt['data']['examples']} examples",
        "Neighbouring data sets": f"{relation}: {_NEIGHBOURS[relation].format(unit=unit)}",
        "Trust model": "central: the trainer sees the data, and everybody else the model after each step",
        "Mechanism": f"Gaussian with correlated noise C^-1 Z, each entry of Z of standard deviation {sigma:.6g}, for "
        f"sums of contributions of norm at most {calibration['clip_norm']:g}",
        "Sensitivity of C": f"{calibration['sensitivity']:.9g} ({calibration['sensitivity_kind']}), "
        f"participation {dict(calibration['participation'])}",
        "Without sampling": f"{calibration['mu']:.6g}-GDP",
        "Order of the data": _ORDER[calibration["sampling"]],
        "Steps": f"{taken} taken, run {'ended' if steps['ended'] else 'open'}",
        "Other runs on these data": "none stated"
        if together is None
        else f"{len(receipt['others'])}; together ({together['epsilon']:.6g}, {together['delta']:g})",
        "Randomness": f"{receipt['noise']['generator']}, noise in {receipt['noise']['dtype']}",
        "Factors": ", ".join(f"`{entry['digest']}`" for entry in receipt["factors"]),
        "Receipt": f"`{receipt['digest']}`",
    }


def card(report: Report, receipt: Mapping[str, Any]) -> str:
    """Return a Markdown page for a model card on a receipt that holds.

    Args:
        report: on the receipt; nothing in it is false.
        receipt: as it was read.
    """
    table = [f"| {name} | {value} |" for name, value in answers(receipt).items()]
    claims = [f"- {entry['claim']}: {_STATUS[entry['status']]}. {entry['why']}" for entry in report.claims]
    rest = _listed(report.not_checked)
    return "\n".join(
        [
            *("# Privacy of this model", "", "| | |", "| --- | --- |", *table, ""),
            *("## Proved from the receipt and its factor files", "", *claims, ""),
            *("## What rests on the job's word, or is unknown", "", *rest, ""),
        ]
    )


def questions(report: Report, receipt: Mapping[str, Any]) -> str:
    """Return a Markdown page with the questions of NIST SP 800-226, and the receipt's answer where it has one.

    Args:
        report: on the receipt; nothing in it is false.
        receipt: as it was read.

    Reference:
        Near, Darais, Lefkovitz and Howarth 2025, Guidelines for evaluating differential privacy guarantees.
    """
    told = answers(receipt)
    rows = [f"| {asked} | {'; '.join(told[row] for row in by) or _NONE} |" for asked, by in _QUESTIONS.items()]
    lines = ["# Answers to NIST SP 800-226", "", "| question | answer |", "| --- | --- |", *rows, ""]
    return "\n".join([*lines, "Not proved, and to be asked of who trained:", "", *_listed(report.not_checked), ""])


def _listed(sentences: Sequence[str]) -> list[str]:
    return [f"- {sentence}" for sentence in sentences]


UNKNOWN = "FILL IN: the receipt does not say"


def entry(report: Report, receipt: Mapping[str, Any]) -> dict[str, Any]:
    """Return a draft of the entry, with `UNKNOWN` where the registry asks for what no receipt holds.

    Args:
        report: on the receipt; nothing in it is false.
        receipt: as it was read.
    """
    told, calibration = answers(receipt), receipt["calibration"]
    users = receipt["unit"] == "user"
    basic = dict.fromkeys(("name", "description", "intended_use", "data_product_region"), UNKNOWN)
    deployment = {
        "basic": {
            **basic,
            "data_curators": [UNKNOWN],
            "data_product_type": "Machine learning model",
            "publication_date": "1900-01-01",  # what the registry's own template has for one that is to be filled in
        },
        "dp_variant": {
            "variant_name": "Approximate DP",
            "data_domain": UNKNOWN,
            "unprotected_quantities": "The number of examples, the clip norm, the divisor, the number of steps and the "
            "factorization are public. " + UNKNOWN,
        },
        "privacy_loss": {
            "privacy_unit": "User" if users else "Example",
            "privacy_unit_details": told["Neighbouring data sets"],
            "privacy_parameters": {"epsilon": receipt["epsilon"], "delta": receipt["delta"]},
            "privacy_parameters_details": f"{told['Without sampling']} without sampling. {told['Order of the data']}.",
        },
        "deployment_model": {
            "model_name": "Central",
            "actors": told["Trust model"],
            "release_type": "One release",
            "release_type_details": "One run; the guarantee covers the model after every step.",
            "data_source_type": "Static",
            "access_type": "Non-interactive",
        },
        "accounting": {
            "post_processing": "Optimizer, schedules and everything that is computed from the noisy sums.",
            "composition": "All steps of the run are accounted for together. Other runs on these data: "
            f"{told['Other runs on these data']}.",
        },
        "implementation": {
            "preprocessing_and_hyperparameter_tuning": UNKNOWN,
            "mechanisms": f"{told['Mechanism']}. Sensitivity {told['Sensitivity of C']}. Randomness: "
            f"{told['Randomness']}. Factorization {told['Factors']}.",
            "justification": f"Proved from the receipt {told['Receipt']} and its factor files: "
            f"{'; '.join(report.checked)}. On the job's word, or unknown: {'; '.join(report.not_checked)}.",
        },
        "administrative": {
            "notes": f"Adjacency {calibration['adjacency']}; noise multiplier {calibration['noise_multiplier']!r}.",
            "registry_authors": [UNKNOWN],
        },
    }
    slug = f"receipt_{receipt['digest'][:12]}"
    return {"url_slug": slug, "status": "Draft", "tier": 3, "deployment": deployment}
