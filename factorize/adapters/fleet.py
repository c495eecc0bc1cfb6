"""The spec of a federated job: how far apart a fleet keeps its clients' rounds, and one matrix for several fleets."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from factorize.errors import InvalidParameter
from factorize.factors.factorization import Factorization
from factorize.numbers.scalars import whole_number
from factorize.samplings.first_steps import leading_block
from factorize.spec import parse_spec


@dataclass(frozen=True)
class FleetAdvice:
    """The advice for a fleet: the spec to solve.

    Attributes:
        spec: the spec for `solve`, `compare` or a service, as plain data.
        min_sep: the fewest rounds from one round of a client to its next.
        max_participations: the most rounds of a client.
        correlated: whether correlated noise gains over independent noise.
        spread: a phrase on how often a client takes part.
        note: a sentence with all of this.
    """

    spec: dict[str, Any]
    min_sep: int
    max_participations: int
    correlated: bool
    spread: str
    note: str


def advise_fleet(
    clients: int,
    clients_a_round: int,
    rounds: int,
    *,
    check_in: int | None = None,
    offline: float = 0.0,
    workload: Mapping[str, object] | None = None,
) -> FleetAdvice:
    """Return the spec with the largest `min_sep` at which each round still finds its clients.

    Clients of the last min_sep - 1 rounds wait, and a share of the others is offline; `clients_a_round` must be left.
    If the fleet turns out smaller this costs only accuracy: the timers refuse clients that are too early.

    Args:
        clients: number of clients in the fleet.
        clients_a_round: number of clients asked in each round.
        rounds: n.
        check_in: rounds after which a client returns by itself; None if the server chooses among all.
        offline: share of the fleet that cannot be asked, or does not answer, in a round.
        workload: workload of the server's optimizer, without n; running sums by default.

    Raises:
        InvalidParameter: numbers out of range, or a fleet that is too small for one round.
    """
    clients, clients_a_round = whole_number("clients", clients), whole_number("clients_a_round", clients_a_round)
    rounds = whole_number("rounds", rounds)
    check_in = None if check_in is None else whole_number("check_in", check_in, remedy="give rounds")
    if not 0 <= offline < 1:
        raise InvalidParameter(f"offline={offline} is outside [0, 1); give a share of the fleet", field="offline")
    busy = math.ceil(clients_a_round / (1 - offline))  # as many of these clients as are planned will answer
    if busy > clients:
        raise InvalidParameter(
            f"of {clients} clients, fewer than {clients_a_round} can answer while {offline:.0%} are offline; ask fewer",
            field="clients_a_round",
        )
    allowed = 1 + (clients - busy) // clients_a_round
    apart = min(rounds, allowed if check_in is None else min(allowed, check_in))
    most = -(-rounds // apart)
    participation = {"kind": "min_sep", "min_sep": apart, "max_participations": most}
    spread = f"a client takes part in at most {most} of {rounds} rounds, at least {apart} apart"
    if apart == 1:
        note = f"{spread}: correlated noise gains nothing if every client may be in every round; use independent noise"
    else:
        note = f"{spread}; use correlated noise, and compare it with independent noise by `factorize compare`"
    spec = {
        "workload": {**(workload or {"kind": "prefix"}), "n": rounds},
        "participation": {"kind": "single"} if most == 1 else participation,
        "mechanism": {"kind": "identity" if apart == 1 else "auto"},
    }
    return FleetAdvice(spec, apart, most, apart > 1, spread, note)


def certified_for(run: Factorization, rounds: int, participation: Mapping[str, object]) -> Factorization:
    """Return the first rounds of a run's matrix, certified for another fleet; the result can be saved and trained with.

    Args:
        run: the run, solved for one fleet.
        rounds: n of the other fleet, no more than the run's.
        participation: participation of the other fleet, in the contract's JSON form.

    Raises:
        InvalidParameter: more rounds than the matrix has.
        InvalidSpec: an invalid participation.
    """
    workload = {**run.spec.workload.document(), "n": rounds}
    spec = parse_spec({"workload": workload, "participation": dict(participation)})
    return Factorization.from_strategy(spec, leading_block(run, rounds).matrix)


def worst_ratio(
    run: Factorization, fleets: Sequence[tuple[int, int, int]], solve: Callable[..., Factorization]
) -> float:
    """Return an upper bound on a run's noise over that of each fleet's best matrix, for the worst of the fleets.

    Each fleet is calibrated for itself (`certified_for`). Its root mean squared error is compared with a certified
    lower bound over all matrices, so that the ratio to the best one is at most this.

    Args:
        run: the one matrix.
        fleets: (rounds, min_sep, max_participations) of each; fleets between them are not covered.
        solve: `solvers.solve`, for the lower bounds.

    Raises:
        InvalidParameter: no fleets, or one without a certified lower bound.
    """
    ratios = []
    for rounds, apart, most in fleets:
        own = certified_for(run, rounds, {"kind": "min_sep", "min_sep": apart, "max_participations": most})
        best = solve(parse_spec({**own.spec.document(), "mechanism": {"kind": "auto"}}))
        if best.certificate.lower_bound is None:
            message = f"there is no certified lower bound for {rounds} rounds and min_sep={apart}; leave that fleet out"
            raise InvalidParameter(message, field="fleets")
        ratio = own.certificate.loss.objective / best.certificate.lower_bound.objective
        ratios.append(math.sqrt(ratio) * (1 + 2.0**-50))
    if not ratios:
        raise InvalidParameter("fleets is empty; give at least one fleet", field="fleets")
    return max(ratios)
