"""The items of a batch, and its report: a table (CSV), or whole certificates (JSON), row by row from the store."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from factorize.api.terminal.output import error_document, error_lines
from factorize.errors import InvalidParameter

GOOD = ("solved", "cached", "to solve", "duplicate")
STATES = ("solved", "cached", "to solve", "duplicate", "failed", "bad", "not reached")

COLUMNS = (
    "label",
    "state",
    "spec_digest",
    "digest",
    "workload",
    "n",
    "participation",
    "objective",
    "mechanism",
    "tolerance",
    "sensitivity",
    "sensitivity_kind",
    "sensitivity_rule",
    "loss",
    "rmse",
    "max_error",
    "mean_squared",
    "total_squared",
    "last_iterate",
    "lower_bound",
    "lower_bound_rule",
    "relative_gap",
    "class_lower_bound",
    "class_lower_bound_rule",
    "residual",
    "converged",
    "solve_seconds",
    "proof_seconds",
    "checked",
    "not_checked",
    "error",
)
_LOSSES = ("rmse", "max_error", "mean_squared", "total_squared", "last_iterate")
Row = tuple[Mapping[str, Any], Mapping[str, Any] | None]
"""The JSON form of an item, and the manifest of its result where there is one."""


@dataclass(slots=True)
class Item:
    """One entry of the list and what became of it; the spec itself is read again when its turn comes.

    Attributes:
        label: where it stands in the list.
        state: one of `STATES`.
        spec_digest: what is asked; None for a bad one.
        digest: of the stored result.
        seconds: the estimate.
        bytes: the estimate.
        error: why it is bad or has failed.
    """

    label: str
    state: str
    spec_digest: str | None = None
    digest: str | None = None
    seconds: float = 0.0
    bytes: int = 0
    error: Exception | None = None

    def document(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "label": self.label,
            "state": self.state.replace(" ", "_"),
            "spec_digest": self.spec_digest,
            "digest": self.digest,
            "error": error_document(self.error) if self.error else None,
        }

    def line(self) -> str:
        """Return the text form: state, digest, place in the list, and what is wrong with it."""
        head = f"{self.state:<11} {(self.spec_digest or '-' * 12)[:12]}  {self.label}"
        return "\n".join([head, *(f"            {line}" for line in error_lines(self.error))]) if self.error else head


def check_path(path: Path) -> Path:
    """Return the path of a report that can be written.

    Raises:
        InvalidParameter: neither .csv nor .json, or its folder does not exist.
    """
    if path.suffix.lower() not in (".csv", ".json"):
        raise InvalidParameter(f"the report {path} must end in .csv or .json", field="report")
    if not path.absolute().parent.is_dir():
        raise InvalidParameter(f"the folder of the report {path} does not exist; make it first", field="report")
    return path


def write_report(path: Path, rows: Iterable[Row]) -> None:
    """Write a report; it appears whole, and one row is held at a time.

    Args:
        path: as `check_path` has let through.
        rows: in the order of the list.
    """
    part = path.with_name(f"{path.name}.part")
    with part.open("w", encoding="utf-8", newline="") as file:
        if path.suffix.lower() == ".csv":
            table = csv.DictWriter(file, COLUMNS)
            table.writeheader()
            table.writerows(_flat(item, manifest) for item, manifest in rows)
        else:
            file.writelines(_array(rows))
    os.replace(part, path)


def _array(rows: Iterable[Row]) -> Iterator[str]:
    before = "[\n"
    for item, manifest in rows:
        more = {} if manifest is None else {name: manifest[name] for name in ("spec", "certificate", "solver", "files")}
        yield before + json.dumps({**item, **more}, allow_nan=False)
        before = ",\n"
    yield ("[" if before == "[\n" else "\n") + "]\n"


def _flat(item: Mapping[str, Any], manifest: Mapping[str, Any] | None) -> dict[str, Any]:
    error = item["error"]
    row = {name: item[name] for name in ("label", "state", "spec_digest", "digest")}
    row["error"] = None if error is None else _sentence(error)
    return row if manifest is None else row | _of_spec(manifest["spec"]) | _of_result(manifest)


def _sentence(error: Mapping[str, Any]) -> str:
    return "; ".join(f"{place['pointer']}: {place['detail']}" for place in error.get("errors", ())) or error["detail"]


def _of_spec(spec: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "workload": spec["workload"]["kind"],
        "n": spec["workload"].get("n"),
        "participation": json.dumps(spec["participation"], sort_keys=True),
        "objective": json.dumps(spec["objective"], sort_keys=True),
        "mechanism": json.dumps(spec["mechanism"], sort_keys=True),
        "tolerance": spec["tolerance"],
    }


def _of_result(manifest: Mapping[str, Any]) -> dict[str, Any]:
    certificate = manifest["certificate"]
    loss = certificate["loss"]
    bound, within = certificate["lower_bound"] or {}, certificate["class_lower_bound"] or {}
    proof = manifest["files"][0].get("proof", {})
    return {
        **{name: loss[name] for name in _LOSSES if name in loss},
        "sensitivity": certificate["sensitivity"]["value"],
        "sensitivity_kind": certificate["sensitivity"]["kind"],
        "sensitivity_rule": certificate["sensitivity"]["rule"],
        "loss": loss["objective"],
        "lower_bound": bound.get("objective"),
        "lower_bound_rule": bound.get("rule"),
        "relative_gap": certificate["relative_gap"],
        "class_lower_bound": within.get("objective"),
        "class_lower_bound_rule": within.get("rule"),
        "residual": (certificate["residual"] or {}).get("max_abs"),
        "converged": certificate["converged"],
        "solve_seconds": manifest["solver"]["seconds"],
        "proof_seconds": proof.get("seconds"),
        "checked": len(proof.get("checked", ())),
        "not_checked": "; ".join(proof.get("not_checked", ())),
    }
