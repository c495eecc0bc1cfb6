"""The items of a batch, and its report: a table (CSV), or whole certificates (JSON), row by row from the store."""

import csv
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from factorize.api.terminal.output import error_document, error_lines
from factorize.api.terminal.targets import check_target, write_whole
from factorize.client.service import Origin
from factorize.errors import InvalidParameter
from factorize.format.manifest import Manifest
from factorize.spec import Spec

GOOD_STATES = ("solved", "cached", "to solve", "duplicate")
STATES = ("solved", "cached", "to solve", "duplicate", "failed", "bad", "not reached")

COLUMNS = {
    **{name: name for name in ("label", "state", "spec_digest", "digest")},
    "origin": "origin place",
    "workload": "spec workload kind",
    "n": "spec workload n",
    **{name: f"spec {name}" for name in ("participation", "objective", "mechanism", "tolerance")},
    "sensitivity": "certificate sensitivity value",
    "sensitivity_kind": "certificate sensitivity kind",
    "sensitivity_rule": "certificate sensitivity rule",
    "loss": "certificate loss objective",
    **{
        name: f"certificate loss {name}"
        for name in ("rmse", "max_error", "mean_squared", "total_squared", "last_iterate")
    },
    "lower_bound": "certificate lower_bound objective",
    "lower_bound_rule": "certificate lower_bound rule",
    "relative_gap": "certificate relative_gap",
    "class_lower_bound": "certificate class_lower_bound objective",
    "class_lower_bound_rule": "certificate class_lower_bound rule",
    "residual": "certificate residual max_abs",
    "converged": "certificate converged",
    "solve_seconds": "solver seconds",
    "proof_seconds": "proof seconds",
    "checked": "proof checked",
    "not_checked": "proof not_checked",
    "error": "error",
}
"""The columns of the table, and where each stands in an item and the manifest of its result."""


@dataclass(slots=True)
class Item:
    """One entry of the list and what became of it.

    Attributes:
        label: its place in the list.
        state: one of `STATES`.
        spec_digest: what is asked; None for a bad one.
        digest: digest of the stored result.
        origin: the place that the result came from.
        seconds: the estimate.
        bytes: the estimate.
        error: why it is bad or has failed.
        spec: what is to be solved: as it is listed, then with its mechanism named.
    """

    label: str
    state: str
    spec_digest: str | None = None
    digest: str | None = None
    origin: Origin | None = None
    seconds: float = 0.0
    bytes: int = 0
    error: Exception | None = None
    spec: Spec | None = None

    @property
    def reason(self) -> str | None:
        """Why it is bad or has failed, in one line; None where it is neither."""
        return "; ".join(error_lines(self.error)) if self.error else None

    def document(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "label": self.label,
            "state": self.state.replace(" ", "_"),
            "spec_digest": self.spec_digest,
            "digest": self.digest,
            "origin": self.origin and vars(self.origin),
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
    check_target(path)
    return path


Row = tuple[Item, Manifest | None]
"""An item, and the manifest of its result where there is one."""


def write_report(path: Path, rows: Iterable[Row]) -> None:
    """Write a report; it appears whole, and one row is held at a time.

    Args:
        path: the path, as `check_path` has let it through.
        rows: the rows in the order of the list.
    """
    with write_whole(path) as part, part.open("w", encoding="utf-8", newline="") as file:
        if path.suffix.lower() == ".csv":
            table = csv.DictWriter(file, COLUMNS)
            table.writeheader()
            table.writerows(_flat(item, manifest) for item, manifest in rows)
        else:
            file.writelines(_array(rows))


def _array(rows: Iterable[Row]) -> Iterator[str]:
    before = "[\n"
    for item, manifest in rows:
        more = {} if manifest is None else {name: manifest[name] for name in ("spec", "certificate", "solver", "files")}
        yield before + json.dumps({**item.document(), **more}, allow_nan=False)
        before = ",\n"
    yield ("[" if before == "[\n" else "\n") + "]\n"


def _flat(item: Item, manifest: Manifest | None) -> dict[str, object]:
    document = {**(manifest or {}), **item.document(), "error": item.reason}
    if manifest is not None:
        document["proof"] = {**manifest.proof, "checked": len(manifest.proof.get("checked", ()))}
    return {name: _cell(document, path.split()) for name, path in COLUMNS.items()}


def _cell(document: Any, path: list[str]) -> object:
    """Return the value at a path, objects as JSON and lists as one text; None where there is none."""
    for name in path:
        document = (document or {}).get(name)
    if isinstance(document, list):
        return "; ".join(document)
    return json.dumps(document, sort_keys=True) if isinstance(document, dict) else document
