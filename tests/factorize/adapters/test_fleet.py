"""Advice for fleets: rounds that find their clients at the separation advised, and at no larger one."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from factorize import Spec, solvers
from factorize.adapters.federated import FederatedRounds
from factorize.adapters.fleet import advise_fleet, certified_for, worst_ratio
from factorize.errors import InvalidParameter
from factorize.privacy import PrivacyTarget


@pytest.mark.parametrize(
    ("fleet", "apart", "most"),
    [
        ({"clients": 200, "clients_a_round": 20, "rounds": 100}, 10, 10),
        ({"clients": 200, "clients_a_round": 20, "rounds": 100, "check_in": 4}, 4, 25),
        ({"clients": 200, "clients_a_round": 20, "rounds": 100, "offline": 0.5}, 9, 12),
        ({"clients": 10**6, "clients_a_round": 100, "rounds": 500}, 500, 1),
        ({"clients": 30, "clients_a_round": 20, "rounds": 100}, 1, 100),
        ({"clients": 20, "clients_a_round": 20, "rounds": 7}, 1, 7),
    ],
)
def test_the_separation_that_a_fleet_allows(fleet: dict[str, Any], apart: int, most: int) -> None:
    advice = advise_fleet(**fleet)
    assert (advice.min_sep, advice.max_participations) == (apart, most)
    assert advice.correlated == (apart > 1) == ("correlated noise gains nothing" not in advice.note)
    assert Spec.model_validate(advice.spec).mechanism.kind == ("auto" if apart > 1 else "identity")


def test_rounds_find_their_clients_at_the_advice_and_not_one_farther_apart(tmp_path: Path) -> None:
    advice = advise_fleet(23, 4, 12)
    names = [f"phone {i}" for i in range(23)]
    found = []
    for apart in (advice.min_sep, advice.min_sep + 1):
        participation = {"kind": "min_sep", "min_sep": apart, "max_participations": advice.max_participations}
        spec = {**advice.spec, "participation": participation, "mechanism": {"kind": "identity"}}
        target = PrivacyTarget(epsilon=4.0, delta=1e-3)
        options: dict[str, Any] = {"clients": 23, "clients_a_round": 4, "clip_norm": 1.0, "seed": 3 << 64}
        factors = solvers.solve(Spec.model_validate(spec))
        rounds = FederatedRounds(tmp_path / str(apart), factors, target, [np.zeros(2)], **options)
        sizes = []
        for _ in range(12):
            sizes.append(len(rounds.choose(names)))
            rounds.close()
        found.append(min(sizes))
    assert found[0] == 4 > found[1]


def test_where_everybody_is_in_every_round_the_solver_agrees_that_correlation_gains_nothing() -> None:
    advice = advise_fleet(20, 20, 16)
    best = solvers.solve(Spec.model_validate({**advice.spec, "mechanism": {"kind": "auto"}}))
    strategy = best.matrix.dense()
    assert np.abs(strategy - np.diag(np.diag(strategy))).max() < 1e-6  # its scale follows the rounds, and nothing more


@pytest.mark.parametrize(
    "change", [{"clients": 0}, {"rounds": 0}, {"check_in": 0}, {"offline": 1.0}, {"offline": -0.1}, {"offline": 0.9}]
)
def test_what_is_no_fleet(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameter):
        advise_fleet(**{"clients": 30, "clients_a_round": 20, "rounds": 10, **change})


FLEETS = [(24, 4, 6), (24, 8, 3), (12, 4, 3), (24, 4, 2)]


def test_one_matrix_for_a_range_of_fleets() -> None:
    ratios, solve = {}, cache(solvers.solve)  # the best of a fleet is the same for each matrix
    for kind in ({"kind": "blt", "buffers": 3}, {"kind": "banded", "bands": 4}, {"kind": "identity"}):
        spec = {**advise_fleet(16, 2, 24, check_in=8).spec, "mechanism": kind}
        if kind["kind"] == "banded":
            spec["participation"] = {"kind": "min_sep", "min_sep": 4, "max_participations": 6}
        run = solvers.solve(Spec.model_validate(spec))
        ratios[kind["kind"]] = worst_ratio(run, FLEETS, solve)
        for rounds, apart, most in FLEETS:
            fleet = {"kind": "min_sep", "min_sep": apart, "max_participations": most}
            own = certified_for(run, rounds, fleet)
            best = solve(Spec.model_validate({**own.spec.document(), "mechanism": {"kind": "auto"}}))
            assert own.certificate.loss.rmse <= ratios[kind["kind"]] * best.certificate.loss.rmse
            assert np.array_equal(own.matrix.dense(), run.matrix.dense()[:rounds, :rounds])
    assert 1 < ratios["blt"] < ratios["banded"] < ratios["identity"]
    assert worst_ratio(run, FLEETS[:1], solve) < ratios["identity"]


def test_a_matrix_certified_for_another_fleet_trains_it(tmp_path: Path) -> None:
    run = solvers.solve(
        Spec.model_validate({**advise_fleet(16, 2, 48).spec, "mechanism": {"kind": "blt", "buffers": 2}})
    )
    own = certified_for(run, 24, {"kind": "min_sep", "min_sep": 4, "max_participations": 6})
    target = PrivacyTarget(epsilon=4.0, delta=1e-3)
    options: dict[str, Any] = {"clients": 16, "clients_a_round": 2, "clip_norm": 1.0, "seed": 3 << 64}
    rounds = FederatedRounds(tmp_path / "state", own, target, [np.zeros(2)], **options)
    assert rounds.steps == 24 and rounds.calibration.sensitivity.participation["min_sep"] == 4
    for _ in range(24):
        rounds.close()
    with pytest.raises(InvalidParameter):
        certified_for(run, 49, {"kind": "min_sep", "min_sep": 4, "max_participations": 6})
    with pytest.raises(InvalidParameter, match="fleets is empty"):
        worst_ratio(run, [], solvers.solve)
