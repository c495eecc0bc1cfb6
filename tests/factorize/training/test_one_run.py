"""Audits of one job: true claims stand, false ones fall, and the bound is the theorem's, summed by hand."""

from __future__ import annotations

from fractions import Fraction
from math import comb, log

import numpy as np
import pytest
from command_line import CommandLine

from factorize.errors import InvalidParameter
from factorize.numbers.gaussian import gaussian_epsilon
from factorize.training.one_run import _p_value, audit_scores

M, DELTA = 2000, 1e-6


def attacked(mu: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores and coins where each example is released for itself, by the Gaussian mechanism of mu."""
    rng = np.random.default_rng(seed)
    coins = rng.integers(0, 2, M)
    return mu * coins + rng.standard_normal(M), coins


def test_a_true_claim_stands_and_a_much_smaller_one_falls() -> None:
    mu = 2.0
    epsilon = gaussian_epsilon(DELTA, mu)
    reports = [audit_scores(*attacked(mu, seed), epsilon=epsilon, delta=DELTA) for seed in range(12)]
    assert not any(report.refutes or report.epsilon > epsilon for report in reports)
    assert min(report.epsilon for report in reports) > 1.5
    false = audit_scores(*attacked(mu, 1), epsilon=1.0, delta=DELTA)
    assert false.refutes and false.p_value < 1e-3 and false.epsilon > 1.0
    assert false.correct > false.guesses / 2


def test_chance_shows_nothing() -> None:
    reports = [audit_scores(*attacked(0.0, seed), epsilon=0.0, delta=0.0) for seed in range(40)]
    assert sum(report.refutes for report in reports) <= 4  # 2 at most are expected
    assert np.mean([report.epsilon for report in reports]) < 0.05


def test_equal_scores_show_nothing_in_whatever_order_the_file_has_them() -> None:
    """A file often has the members last; an attack that tells nothing then guesses no better for it."""
    coins = np.repeat([0, 1], M // 2)
    for scores in (np.zeros(M), np.arange(M) % 2, np.arange(M) % 5):
        report = audit_scores(scores, coins, epsilon=0.1, delta=0.0)
        assert not report.refutes and report.epsilon < 0.1
    assert audit_scores(coins, coins, epsilon=5.0, delta=0.0).refutes  # scores of two values, and all are right


@pytest.mark.parametrize(("guesses", "correct"), [(10, 9), (30, 22), (30, 30)])
def test_the_bound_is_that_of_the_theorem(guesses: int, correct: int) -> None:
    chance, delta, examples = Fraction(3, 4), Fraction(1, 1000), 40

    def least(v: int) -> Fraction:
        """P[B >= v]."""
        first = max(v, 0)
        return sum(
            (comb(guesses, i) * chance**i * (1 - chance) ** (guesses - i) for i in range(first, guesses + 1)),
            Fraction(0),
        )

    alpha = max(Fraction(2, i) * (least(correct - i) - least(correct)) for i in range(1, examples + 1))
    exact = min(Fraction(1), least(correct) + examples * delta * alpha)
    assert _p_value(guesses, correct, log(3), examples, float(delta)) == pytest.approx(float(exact), rel=1e-9)


@pytest.mark.parametrize(
    ("scores", "members", "match"),
    [
        ([1.0] * 19, [0, 1] * 9 + [0], "20 examples"),
        ([1.0] * 20, [0, 2] * 10, "members contains '2'"),
        ([float("nan")] * 20, [0, 1] * 10, "no NaN"),
        ([1.0] * 100, [1] * 100, "which fair coins"),
        (["high"] * 20, [0, 1] * 10, "the scores are no list of numbers"),
    ],
)
def test_what_is_no_audit_is_refused(scores: list[float], members: list[int], match: str) -> None:
    with pytest.raises(InvalidParameter, match="delta is of type str"):
        audit_scores([1.0] * 20, [0, 1] * 10, epsilon=1.0, delta="1e-5")  # type: ignore[arg-type]
    with pytest.raises(InvalidParameter, match=match):
        audit_scores(scores, members, epsilon=1.0, delta=0.0)


def test_the_command_reads_a_table(tmp_path) -> None:
    factorize = CommandLine(tmp_path)
    scores, coins = attacked(2.0, 1)
    table = "\n".join(
        ["member,score", *(f"{coin},{score!r}" for coin, score in zip(coins, scores.tolist(), strict=True))]
    )
    (factorize.home / "scores.csv").write_text(table)
    run = run_of_table = factorize("audit", "scores", "scores.csv", "--epsilon", "1", "--delta", "1e-6")
    assert run.code == 4 and "refuted" in run.out
    run = factorize("audit", "scores", "scores.csv", "--epsilon", "12", "--delta", "1e-6", "--output", "json")
    assert run.code == 0 and run.json()["refuted"] is False
    for spreadsheet in (f"\ufeff{table}", table.replace("\n1,", "\nTrue,").replace("\n0,", "\n0.0,")):
        (factorize.home / "scores.csv").write_text(spreadsheet, encoding="utf-8")
        assert factorize("audit", "scores", "scores.csv", "--epsilon", "1", "--delta", "1e-6") == run_of_table


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (b"a,b\n1,2\n", "columns score and member"),
        (b"", "columns score and member"),
        (b"score,member\n", "at least 20 examples"),
        (b"score,member\n0.5\n", "not a table of numbers in UTF-8"),
        (b"score,member\n0.5,maybe\n", "'maybe'"),
        (b"score,member,na\xefve\n", "not a table of numbers in UTF-8"),
        (b"score,member\n" + b"1" * 200_000, "field larger than field limit"),
    ],
)
def test_a_file_that_is_no_table_of_scores_is_refused(within: CommandLine, tmp_path, table: bytes, words: str) -> None:
    (tmp_path / "scores.csv").write_bytes(table)
    assert words in within("audit", "scores", "scores.csv", "--epsilon", "1").error(2)
