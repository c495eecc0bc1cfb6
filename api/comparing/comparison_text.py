"""A comparison as text: one line per mechanism, what to take, and what was left out."""

from __future__ import annotations

from typing import Any


def text(table: dict[str, Any]) -> str:
    """Return the table for people."""
    private = any(row["rmse_at_privacy"] is not None for row in table["rows"])
    width = 2 + max([len("mechanism"), *(len(name_of(row)) for row in table["rows"])])
    head = f"{' mechanism':<{width}}{'objective':>13}{'gap %':>9}{'rmse':>10}{'max error':>11}"
    head += (
        f"{'at privacy':>12}" if private else ""
    ) + f"{'sens.':>9}{'kind':>7}{'vectors':>9}{'redraws':>9}{'flops':>9}{'s':>7}"
    lines = [head]
    for number, row in enumerate(table["rows"]):
        mark = "*" if table["recommendation"] and table["recommendation"]["row"] == number else " "
        lines.append(mark + _row(row, width, private)[1:])
    bound = table["lower_bound"]
    lines.append(
        "no lower bound is known" if bound is None else f"lower bound {bound['objective']:.9g} ({bound['rule']})"
    )
    if table["recommendation"]:
        lines.append(f"* {table['recommendation']['reason']}")
    lines += [f"left out: {name_of(refused)}: {refused['reason']}" for refused in table["refused"]]
    return "\n".join(lines)


def _row(row: dict[str, Any], width: int, private: bool) -> str:
    loss, gap, kind = row["loss"], row["relative_gap"], row["sensitivity"]["kind"]
    line = f" {name_of(row):<{width - 1}}{loss['objective']:>13.7g}" + (
        f"{'-':>9}" if gap is None else f"{100 * gap:>9.3g}"
    )
    line += f"{loss['rmse']:>10.5g}{loss['max_error']:>11.5g}"
    line += f"{row['rmse_at_privacy']:>12.5g}" if private else ""
    line += f"{row['sensitivity']['value']:>9.4g}{'exact' if kind == 'exact' else 'bound':>7}"
    return line + f"{row['noise_vectors']:>9}{row['redraws']:>9.3g}{row['flops']:>9.4g}{row['seconds']:>7.2f}"


def name_of(row: dict[str, Any]) -> str:
    """Return mechanism and parameters, and whether columns are normalised or the noise counts on sampling."""
    parameters = [f"{name}={_brief(value)}" for name, value in row["parameters"].items()]
    parameters += [row["normalization"]] if row["normalization"] not in (None, "none") else []
    parameters += ["sampled"] if row.get("sampling") else []
    return f"{row['mechanism']}({', '.join(parameters)})" if parameters else str(row["mechanism"])


def _brief(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
