"""Labels: a spec in one line, from its plain data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def describe_part(document: Mapping[str, Any]) -> str:
    """Return a part of a spec in the form `kind(field=value, ...)`, long lists by their length."""
    fields = [f"{key}={_brief(value)}" for key, value in document.items() if key != "kind"]
    return f"{document['kind']}({', '.join(fields)})" if fields else str(document["kind"])


def _brief(value: Any) -> str:
    if isinstance(value, list):
        return f"[{len(value)} values]" if len(value) > 4 else str(value)
    if isinstance(value, dict):
        return describe_part(value) if "kind" in value else "{...}"
    text = str(value)
    return text[:12] + "..." if len(text) > 40 else text


def describe_spec(spec: Mapping[str, Any]) -> str:
    """Return a spec in one line."""
    parts = [describe_part(spec[name]) for name in ("workload", "participation", "objective", "mechanism")]
    if spec.get("optimize_for"):
        parts.append(f"optimised for {describe_part(spec['optimize_for'])}")
    if spec.get("sampling"):
        parts.append(f"best under {describe_part(spec['sampling'])}")
    return ", ".join(parts)
