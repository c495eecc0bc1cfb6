"""Labels of specs, one line each, from plain data."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

RATE_TOLERANCE = 1e-9
"""The difference from a schedule, relative to a peak of 1, below which learning rates get its name."""
MAX_NAMED_RATES = 1 << 16
"""The most learning rates for which a name is searched, which takes a microsecond for each rate."""


def describe_part(document: Mapping[str, object]) -> str:
    """Return a part of a spec in the form `kind(field=value, ...)`, long lists by their length."""
    rates = document.get("learning_rates")
    if isinstance(rates, list) and (name := name_schedule(rates)):
        document = {**document, "learning_rates": name}
    fields = [f"{key}={_brief(value)}" for key, value in document.items() if key != "kind"]
    return f"{document['kind']}({', '.join(fields)})" if fields else str(document["kind"])


def _brief(value: object) -> str:
    if isinstance(value, list):
        return f"[{len(value)} values]" if len(value) > 4 else str(value)
    if isinstance(value, dict):
        return describe_part(value) if "kind" in value else "{...}"
    text = str(value)
    return text[:12] + "..." if len(text) > 60 else text


def name_schedule(rates: Sequence[float]) -> str | None:
    """Return the named schedule (docs/spec.md) that has these learning rates, which a canonical spec lists, or None."""
    n = len(rates)
    flat = next((i for i, rate in enumerate(rates) if rate != 1.0), n)
    if not 5 <= n <= MAX_NAMED_RATES or flat == n or max(rates) != 1.0:
        return None
    top, last = rates.index(1.0), rates[-1]
    warmup = top + 1 if rates[min(top + 1, n - 1)] == 1.0 else 0
    found: list[tuple[str, dict[str, float], list[float]]] = []
    ends = {"warmup_cosine": n - warmup} if warmup else {"cosine": n, "cosine_to_last": n - 1}
    for name, end in ends.items():
        half = [(1 + math.cos(math.pi * i / end)) / 2 for i in range(n - warmup)]
        low = half[-1] if half else 1.0
        final = round((last - low) / (1 - low), 9) if low < 1 else 0.0
        up = [(i + 1) / warmup for i in range(warmup)]
        found.append((name, {"warmup": warmup, "final": final}, up + [final + (1 - final) * part for part in half]))
    if flat:
        down = [1 - (1 - last) * (i + 1) / (n - flat) for i in range(n - flat)]
        found.append(("linear_cooldown", {"steps": n - flat, "final": last}, [1.0] * flat + down))
        steps = [rates[flat] ** (i // flat) for i in range(n)]
        found.append(("step", {"every": flat, "factor": rates[flat]}, steps))
    for name, fields, values in found:
        if all(abs(ours - theirs) < RATE_TOLERANCE for ours, theirs in zip(rates, values, strict=True)):
            words = [f"{field}={value:g}" for field, value in fields.items() if value]
            return f"{name}({', '.join(words)})" if words else name
    return None


def describe_spec(spec: Mapping[str, Any]) -> str:
    """Return a spec in one line."""
    parts = [describe_part(spec[name]) for name in ("workload", "participation", "objective", "mechanism")]
    if spec.get("optimize_for"):
        parts.append(f"optimised for {describe_part(spec['optimize_for'])}")
    if spec.get("sampling"):
        parts.append(f"best under {describe_part(spec['sampling'])}")
    return ", ".join(parts)
