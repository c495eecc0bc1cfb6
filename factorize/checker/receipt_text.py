"""The report on a receipt in words: for a terminal, for a model card, and in the order of NIST SP 800-226.

A receipt also drafts its entry in the Differential Privacy Deployments Registry. The texts are in the folder `pages`.

Reference:
    Near, Darais, Lefkovitz and Howarth 2025, Guidelines for evaluating differential privacy guarantees; Nanayakkara,
    Ghazi and Vadhan 2025 (arXiv 2509.13509); the schema of opendp/deployments-registry-data of 15 July 2026, tier 3.
    JSON is YAML, the form of the registry, and 1900-01-01 is what its template has for a date that is to be filled in.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from importlib.resources import files
from typing import Any

from factorize.checker.report import Report
from factorize.format.receipts import steps_of

UNKNOWN = "FILL IN: the receipt does not say"
_STATUS = {"proved": "proved", "false": "FALSE", "not_looked_at": "NOT LOOKED AT"}


FALSE, NOT_LOOKED_AT, OPEN = 4, 6, 7
"""Exit codes of the command."""


def verdict(report: Report) -> tuple[str, int]:
    """Return the first line of a report, and the exit code."""
    if not report.supported:
        return "NOT SUPPORTED", FALSE
    if report.unseen:
        return "NOT ALL SEEN", NOT_LOOKED_AT
    return ("OPEN", OPEN) if report.open else ("verified", 0)


def text(report: Report) -> str:
    """Return the report for a terminal."""
    lines = [verdict(report)[0] + report.aside]
    lines += [f"{_STATUS[entry['status']]:15}{entry['claim']}: {entry['why']}" for entry in report.claims]
    lines += [f"{'failed':15}{sentence}" for sentence in report.failed]
    return "\n".join([*lines, *(f"{'not checked':15}{sentence}" for sentence in report.not_checked)])


def page(name: str, report: Report, receipt: Mapping[str, Any]) -> str:
    """Return a page on a receipt that holds.

    Args:
        name: `card.md`, for a model card; `nist.md`, the questions of NIST SP 800-226 with the receipt's answers; or
            `registry.json`, a draft of an entry, with `UNKNOWN` where the registry asks for what no receipt holds.
        report: on the receipt; nothing in it is false.
        receipt: as it was read.
    """
    words, calibration = json.loads(_read("phrases.json")), receipt["calibration"]
    steps, together = receipt["steps"], receipt["together"]
    numbers = {
        "receipt": receipt,
        "calibration": calibration,
        "neighbours": words["neighbours"][calibration["adjacency"]].format(unit=receipt["unit"]),
        "order": words["orders"][calibration["sampling"]],
        "taken": steps_of(receipt),
        "state": "ended" if steps["ended"] else "open",
        "others": "none stated"
        if together is None
        else f"{len(receipt['others'])}; together ({together['epsilon']:.6g}, {together['delta']:g})",
        "factors": ", ".join(f"`{entry['digest']}`" for entry in receipt["factors"]),
    }
    phrases = _filled(words["phrases"], numbers)
    values = {
        **numbers,
        **phrases,
        "Unit": receipt["unit"].title(),
        "unknown": UNKNOWN,
        "table": "\n".join(f"| {row} | {phrase} |" for row, phrase in phrases.items()),
        "claims": _listed(f"{entry['claim']}: {_STATUS[entry['status']]}. {entry['why']}" for entry in report.claims),
        "left": _listed(report.not_checked),
        "proved": "; ".join(report.checked),
        "unproved": "; ".join(report.not_checked),
    }
    if not name.endswith(".json"):
        return _read(name).format_map(values)
    entry = _filled(json.loads(_read(name)), values)
    entry["deployment"]["privacy_loss"]["privacy_parameters"] = {key: receipt[key] for key in ("epsilon", "delta")}
    return json.dumps(entry, indent=2) + "\n"


def _read(name: str) -> str:
    return (files("factorize.checker") / "pages" / name).read_text("utf-8")


def _filled(part: Any, values: Mapping[str, Any]) -> Any:
    """Return plain data with the values in its texts."""
    if isinstance(part, dict):
        return {name: _filled(each, values) for name, each in part.items()}
    if isinstance(part, list):
        return [_filled(each, values) for each in part]
    return part.format_map(values) if isinstance(part, str) else part


def _listed(sentences: Iterable[str]) -> str:
    return "\n".join(f"- {sentence}" for sentence in sentences)
