"""A comparison as text: one line per mechanism and sampling, what to take, what loaders do, and what was left out."""

from __future__ import annotations

from typing import Any

_UNFINISHED = "~"


def text(table: dict[str, Any]) -> str:
    """Return the table for people."""
    sampled = bool(table["samplings"])
    rows = table["rows"]
    private = any(row["rmse_at_privacy"] is not None for row in rows)
    width = 2 + max([len("mechanism"), *(len(name_of(row)) for row in rows)])
    timed = bool(table.get("step_pace"))
    head = (_SAMPLED_HEAD if sampled else _head(private)) + (f"{'s/step':>10}" if timed else "")
    lines = [f"{' mechanism':<{width}}{head}"]
    marked = {one["row"] for one in chosen_of(table)}
    for number, row in enumerate(rows):
        mark = "*" if number in marked else " "
        line = f"{mark}{name_of(row):<{width - 1}}" + (_sampled(row) if sampled else _row(row, private))
        lines.append(line + (f"{row['seconds_per_step']:>10.3g}" if timed else ""))
    if not all(row["converged"] for row in rows):
        lines.append(
            f"{_UNFINISHED} stopped before its tolerance, or at a local optimum; its numbers hold for what was found"
        )
    lines += _bounds(table) + _chosen(table, sampled)
    lines += [_scheme(one) for one in table["samplings"]]
    lines += [f"left out: {name_of(refused)}: {refused['reason']}" for refused in table["refused"]]
    return "\n".join(lines)


def _head(private: bool) -> str:
    return (
        f"{'objective':>13}{'gap %':>9}{'rmse':>10}{'max error':>11}"
        + (f"{'at privacy':>12}" if private else "")
        + f"{'sens.':>9}{'kind':>7}{'vectors':>9}{'redraws':>9}{'flops':>9}{'s':>7}"
    )


def _row(row: dict[str, Any], private: bool) -> str:
    loss, kind = row["loss"], row["sensitivity"]["kind"]
    line = f"{loss['objective']:>13.7g}{_gap(row)}{loss['rmse']:>10.5g}{loss['max_error']:>11.5g}"
    line += f"{row['rmse_at_privacy']:>12.5g}" if private else ""
    line += f"{row['sensitivity']['value']:>9.4g}{'exact' if kind == 'exact' else 'bound':>7}"
    return line + f"{row['noise_vectors']:>9}{row['redraws']:>9.3g}{row['flops']:>9.4g}{row['seconds']:>7.2f}"


_SAMPLED_HEAD = (
    f"{'sampling':<16}{'rmse':>10}{'gap %':>9}{'sigma of sums':>15}  {'rests on':<14}{'not secret':>11}"
    f"{'vectors':>9}{'s':>8}"
)


def _sampled(row: dict[str, Any]) -> str:
    """The numbers at the privacy."""
    line = f"{row['sampling'] or 'fixed':<16}{row['rmse_at_privacy']:>10.5g}{_gap(row)}{row['sigma_of_sums']:>15.5g}"
    line += f"  {row['method']:<14}{row['rmse_without_secrecy']:>11.5g}"
    return line + f"{row['noise_vectors']:>9}{row['seconds']:>8.2f}"


def _gap(row: dict[str, Any]) -> str:
    gap = row["relative_gap"]
    return f"{'-':>9}" if gap is None else f"{100 * gap:>9.3g}"


def _bounds(table: dict[str, Any]) -> list[str]:
    bound = table["lower_bound"]
    lines = ["no lower bound is known" if bound is None else f"lower bound {bound['objective']:.9g} ({bound['rule']})"]
    return lines + [
        f"lower bound under {name}: {found['objective']:.9g} at this privacy, rmse {found['objective'] ** 0.5:.5g}"
        f" ({found['rule']})"
        for name, found in table["sampled_bounds"].items()
    ]


def _chosen(table: dict[str, Any], sampled: bool) -> list[str]:
    """What to take for each budget, how to get it, and what dense noise costs."""
    chosen = chosen_of(table)
    several = len(chosen) > 1
    lines = []
    for one in chosen:
        lines.append(f"* {one['reason']}")
        if sampled or several:
            lines.append(f"{_within(one) if several else 'next'}: {table['rows'][one['row']]['next_command']}")
    if table.get("step_pace"):
        pace = table["step_pace"]
        lines.append(f"s/step: noise of a step for {pace['parameters']} parameters, by {pace['basis']}")
    if not sampled or not chosen:
        return lines
    units = "sigma of sums is the standard deviation per entry of Z, for sums of contributions of norm 1"
    gap = "gap % is of the squared error, above the bound for the row's own sampling"
    return [*lines, f"{units}; {gap}"]


def _within(one: dict[str, Any]) -> str:
    return f"next, within {one['budget']}"


def chosen_of(table: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the recommendations of a table, one for each memory budget that a row fits."""
    if "recommendations" in table:
        return [one for one in table["recommendations"] if one["row"] is not None]
    return [{"budget": None, **table["recommendation"]}] if table["recommendation"] else []


def _scheme(one: dict[str, Any]) -> str:
    why = f" No row: it {one['misfit']}." if one["misfit"] else ""
    return f"{one['sampling']} ({one['title']}): {one['loader']} Secret: {one['secret']}.{why}"


def name_of(row: dict[str, Any]) -> str:
    """Return mechanism and parameters, whether columns are normalised, what it is optimised for, and if it finished."""
    parameters = [f"{name}={_brief(value)}" for name, value in row["parameters"].items()]
    parameters += [row["normalization"]] if row["normalization"] not in (None, "none") else []
    parameters += [f"for the {row['optimized_for']}"] if row.get("optimized_for") else []
    parameters += [f"for {row['optimized_under']}"] if row.get("optimized_under") else []
    name = f"{row['mechanism']}({', '.join(parameters)})" if parameters else str(row["mechanism"])
    return name if row.get("converged", True) else name + _UNFINISHED


def _brief(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
