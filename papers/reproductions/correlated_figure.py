"""K23, Figure 3 (a, b), judged and drawn: what the text says of the accuracies, each a win, a loss or a tie."""

from __future__ import annotations

import numpy as np

from papers.reproductions.comparison import Comparison

TIE = 0.25
"""The points of accuracy that decide nothing."""

SAMPLED_METHODS = ("DP-SGD, RDP", "DP-SGD, PLD")

Accuracies = dict[str, np.ndarray]
"""The accuracies of each method in percent, shape (trials, epsilons)."""


def judge(
    comparison: Comparison, found: dict[int, Accuracies], epsilons: tuple[float, ...], taus: tuple[int, ...]
) -> None:
    """Judge what the text says of the figure."""
    last = f"DP-MF+, tau = {taus[-1]}"
    by_tau = [f"DP-MF+, tau = {tau}" for tau in taus]
    for epochs, runs in found.items():
        label = f"{epochs} epoch{'s' if epochs > 1 else ''}"
        steps = [order_of(runs[b], runs[a]) for a, b in zip(by_tau, by_tau[1:], strict=False)]
        decide(comparison, f"{label}: DP-MF+ improves with tau at every epsilon", np.array(steps), epsilons)
        decide(
            comparison, f"{label}: DP-MF+ with tau = T is above DP-MF", order_of(runs[last], runs["DP-MF"]), epsilons
        )
        for name, first in (("DP-MF", {1: 0.31, 16: 31.0}[epochs]), (last, {1: 0.031, 16: 0.0}[epochs])):
            for accounting in SAMPLED_METHODS:
                signs = order_of(runs[name], runs[accounting])
                told = np.where(np.array(epsilons) >= first, signs, -signs)
                text = f"{label}: {name} is above {accounting} from eps {first:g} on, and below it before"
                if accounting == SAMPLED_METHODS[0]:  # this is the paper's accountant
                    decide(comparison, text, told, epsilons)
                comparison.remark(f"    above {accounting} at eps {listed(epsilons, signs > 0)}")
        private = max(float(values.mean(axis=0).max()) for name, values in runs.items() if name != "non-private")
        free = float(runs["non-private"][0, 0])
        text = f"{label}: no private mean reaches the accuracy without privacy, {private:.2f} and {free:.2f}"
        comparison.claim(text, private < free - TIE, tied=abs(private - free) <= TIE)


def decide(comparison: Comparison, text: str, signs: np.ndarray, epsilons: tuple[float, ...]) -> None:
    """Add a statement: it holds where every comparison is won, fails where one is lost, and is a tie otherwise."""
    signs = np.atleast_2d(signs)
    comparison.claim(text, bool((signs > 0).all()), tied=bool((signs >= 0).all() and (signs == 0).any()))
    for name, chosen in (("tied", (signs == 0).any(axis=0)), ("not so", (signs < 0).any(axis=0))):
        if chosen.any():
            comparison.remark(f"    {name} at eps {listed(epsilons, chosen)}")


def order_of(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return 1 where the mean of one is above that of the other, -1 below, 0 for a tie: 0.25 points, or two errors.

    Trials of the same number share their normal numbers, so the error is that of their differences.
    """
    gains = one - other
    error = gains.std(axis=0, ddof=1) / np.sqrt(len(gains))
    mean = gains.mean(axis=0)
    return np.where(np.abs(mean) <= np.maximum(TIE, 2 * error), 0, np.sign(mean)).astype(int)


def listed(epsilons: tuple[float, ...], chosen: np.ndarray) -> str:
    """Return the chosen epsilons with commas."""
    return ", ".join(f"{epsilon:g}" for epsilon, one in zip(epsilons, chosen, strict=True) if one) or "none"


def draw(
    comparison: Comparison, found: dict[int, Accuracies], epsilons: tuple[float, ...], taus: tuple[int, ...]
) -> None:
    """Draw accuracy over epsilon with standard errors, one panel for each number of epochs."""
    with comparison.picture((10.5, 4), 2, sharey=True) as figure:
        panels = figure.axes
        from matplotlib import colormaps

        shades = colormaps["viridis"](np.linspace(0.85, 0.1, len(taus)))
        for panel, (epochs, runs) in zip(panels, found.items(), strict=True):
            for name, values in runs.items():
                style = {"DP-MF": "k--", "DP-SGD, RDP": "r-", "DP-SGD, PLD": "r:", "non-private": "0.6"}.get(name, "-")
                tau = name.rpartition("= ")[2]
                colour = {"color": shades[taus.index(int(tau))]} if "tau" in name else {}
                if name == "non-private":
                    panel.axhline(values.mean(), color=style, linewidth=1, label=name)
                    continue
                error = values.std(axis=0, ddof=1) / np.sqrt(len(values))
                panel.errorbar(
                    epsilons, values.mean(axis=0), error, fmt=style, label=name, linewidth=1.4, capsize=2, **colour
                )
            panel.set(xscale="log", xlabel="epsilon", title=f"{epochs} epoch{'s' if epochs > 1 else ''}")
            panel.grid(alpha=0.3)
        panels[0].set_ylabel("test accuracy, %")
        panels[0].legend(frameon=False, fontsize=8)
