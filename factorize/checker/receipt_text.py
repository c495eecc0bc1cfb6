"""The report on a receipt as text: for a terminal, for a model card, and in the order of NIST SP 800-226.

A receipt also drafts its entry in the Differential Privacy Deployments Registry. The texts are in the folder `pages`.

Reference:
    Near, Darais, Lefkovitz and Howarth 2025, Guidelines for evaluating differential privacy guarantees; Nanayakkara,
    Ghazi and Vadhan 2025 (arXiv 2509.13509); the schema of opendp/deployments-registry-data of 15 July 2026, tier 3.
    JSON is YAML, the form of the registry, and its template has 1900-01-01 for a date to be filled in.
"""

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from factorize.checker.report import Report
from factorize.encoding import JsonObject
from factorize.format.labels import describe_part
from factorize.format.quantities import at_least, at_most
from factorize.format.receipts import steps_of

UNKNOWN = "FILL IN: the receipt does not say"
"""The value of each field that the registry asks for and no receipt holds."""
STATUSES = {"proved": "proved", "false": "FALSE", "not_looked_at": "NOT LOOKED AT"}
"""The words for the status of a claim."""
EXIT_FALSE, EXIT_NOT_LOOKED_AT, EXIT_OPEN = 4, 6, 7
"""The exit codes of the command."""


def verdict(report: Report) -> tuple[str, int]:
    """Return the first line of a report, and the exit code."""
    if not report.supported:
        return "NOT SUPPORTED", EXIT_FALSE
    if report.unseen:
        return "NOT ALL SEEN", EXIT_NOT_LOOKED_AT
    return ("OPEN", EXIT_OPEN) if report.open else ("verified", 0)


def text(report: Report) -> str:
    """Return the report for a terminal."""
    lines = [verdict(report)[0] + report.aside]
    lines += [f"{STATUSES[entry['status']]:15}{entry['claim']}: {entry['why']}" for entry in report.claims]
    lines += [f"{'failed':15}{sentence}" for sentence in report.failed]
    return "\n".join([*lines, *(f"{'not checked':15}{sentence}" for sentence in report.not_checked)])


def page(name: str, report: Report, receipt: JsonObject) -> str:
    """Return a page on a receipt that holds.

    Args:
        name: `card.md`, for a model card; `nist.md`, the questions of NIST SP 800-226 with the receipt's answers; or
            `registry.json`, a draft of an entry, with `UNKNOWN` where the registry asks for what no receipt holds.
        report: the report on the receipt, in which nothing is false.
        receipt: the receipt as it was read.
    """
    words, written = json.loads(_read("phrases.json")), {} if name.endswith(".json") else _MARKDOWN
    values = {key: value.translate(written) for key, value in _values(receipt, words).items()}
    phrases = {row: phrase.format_map(values) for row, phrase in words["phrases"].items()}
    claims = [f"{entry['claim']}: {STATUSES[entry['status']]}. {entry['why']}" for entry in report.claims]
    values |= phrases | {
        "unknown": UNKNOWN,
        "table": "\n".join(f"| {row} | {phrase} |" for row, phrase in phrases.items()),
        "claims": "\n".join(f"- {sentence.translate(written)}" for sentence in claims),
        "left": "\n".join(f"- {sentence.translate(written)}" for sentence in report.not_checked),
        "proved": "; ".join(report.checked),
        "unproved": "; ".join(report.not_checked),
    }
    if not name.endswith(".json"):
        return _read(name).format_map(values)
    entry = _filled(json.loads(_read(name)), values)
    seen = _seen(receipt)
    entry["deployment"]["privacy_loss"]["privacy_parameters"] = {key: seen[key] for key in ("epsilon", "delta")}
    return json.dumps(entry, indent=2) + "\n"


_MARKDOWN = str.maketrans({letter: f"\\{letter}" for letter in "\\`*<>|[]#"})
"""The escapes of texts in Markdown. The report keeps each text on one line, and JSON has its own writer."""


def _values(receipt: JsonObject, words: Mapping[str, Any]) -> dict[str, str]:
    """Return the values of a receipt that the phrases insert, every bound rounded outwards."""
    calibration, data, steps = receipt["calibration"], receipt["data"], receipt["steps"]
    unit, examples, together = receipt["unit"], _several(data["examples"], "example"), receipt["together"]
    runs = f"{len(receipt['others'])}{', and those of a search' * ('trials' in receipt)}"
    mean = receipt.get("trials", {"mean": 1})["mean"]
    return {
        "level": say_level(_seen(receipt)),
        "best": f" as the best of {at_most(mean)} runs in the mean" if "trials" in receipt else "",
        "each": " for each of these runs" if "trials" in receipt else "",
        "Unit": unit.title(),
        "whose": f"one {unit} of {examples}" if unit == "example" else f"one user of {data['users']} with {examples}",
        "adjacency": calibration["adjacency"],
        "neighbours": words["neighbours"][calibration["adjacency"]].format(unit=unit),
        "order": words["orders"][calibration["sampling"]],
        "sigma": at_least(calibration["sigma_of_sums"]),
        "multiplier": at_least(calibration["noise_multiplier"]),
        "clip": at_most(calibration["clip_norm"]),
        "sensitivity": f"{at_most(calibration['sensitivity'], 9)} ({calibration['sensitivity_kind']})",
        "participation": describe_part(calibration["participation"]),
        "mu": at_most(calibration["mu"]),
        "taken": str(steps_of(receipt)),
        "state": "ended" if steps["ended"] else "open",
        "others": f"{runs}; together {say_level(together)}" if together else "none stated",
        "generator": receipt["noise"]["generator"],
        "dtype": receipt["noise"]["dtype"],
        "factors": ", ".join(entry["digest"] for entry in receipt["factors"]),
        "digest": receipt["digest"],
    }


def _seen(receipt: JsonObject) -> JsonObject:
    """Return the part that states epsilon and delta of what is seen: of the run, or of the best run of a search."""
    return dict(receipt["together"]) if "trials" in receipt else receipt


def say_level(stated: Mapping[str, Any]) -> str:
    """Return (epsilon, delta) in six digits each, rounded up."""
    return f"({at_most(stated['epsilon'])}, {at_most(stated['delta'])})"


def say_counts(steps: Mapping[str, Any]) -> str:
    """Return the auditor's counts in words, with nothing about a secret order."""
    counted, most = steps["counted"], steps["participations"]
    if most is None:
        return "the order is secret, and no count shows what was drawn"
    whole = f"{_several(counted['contributions'], 'contribution')} of {_several(counted['number'], counted['unit'])}"
    text = f"the auditor counted {whole}, at most {most} of each"
    if most > 1:
        text += f", {steps['separation']} or more steps apart and always by a multiple of {steps['period']}"
    return f"{text}: the participation allows it"


def _several(count: int, noun: str) -> str:
    return f"{count} {noun}" + "s" * (count != 1)


def _read(name: str) -> str:
    return (files("factorize.checker") / "pages" / name).read_text("utf-8")


def _filled(part: object, values: Mapping[str, object]) -> Any:
    """Return plain data with the values inserted in its texts."""
    if isinstance(part, dict):
        return {name: _filled(each, values) for name, each in part.items()}
    if isinstance(part, list):
        return [_filled(each, values) for each in part]
    return part.format_map(values) if isinstance(part, str) else part
