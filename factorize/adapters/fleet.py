"""The spec of a federated job: how far apart a fleet can keep its clients' rounds, and whether correlation gains."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from factorize.errors import InvalidParameter


@dataclass(frozen=True)
class FleetAdvice:
    """What to solve for a fleet.

    Attributes:
        spec: for `solve`, `compare` or a service, as plain data.
        min_sep: the fewest rounds from one round of a client to its next.
        max_participations: the most rounds of a client.
        correlated: whether correlated noise gains over independent noise.
        note: all of this in a sentence.
    """

    spec: dict[str, Any]
    min_sep: int
    max_participations: int
    correlated: bool
    note: str


def advise_fleet(
    clients: int,
    clients_a_round: int,
    rounds: int,
    *,
    check_in: int | None = None,
    offline: float = 0.0,
    workload: Mapping[str, Any] | None = None,
) -> FleetAdvice:
    """Return the spec with the largest `min_sep` at which each round still finds its clients.

    Those of the last min_sep - 1 rounds wait, and of the others a share is offline; `clients_a_round` have to be left.
    A fleet that turns out smaller costs accuracy only: the timers refuse whoever is too early.

    Args:
        clients: in the fleet.
        clients_a_round: asked in each round.
        rounds: n.
        check_in: rounds after which a client returns by itself; None where the server chooses among all.
        offline: share of the fleet that cannot be asked, or does not answer, in a round.
        workload: what the server's optimizer sums, without n; running sums by default.

    Raises:
        InvalidParameter: numbers out of range, or a fleet that is too small for one round.
    """
    for name, number in (("clients", clients), ("clients_a_round", clients_a_round), ("rounds", rounds)):
        if number < 1:
            raise InvalidParameter(f"{name}={number} is below 1", field=name)
    if check_in is not None and check_in < 1:
        raise InvalidParameter(f"check_in={check_in} is below 1 round", field="check_in")
    if not 0 <= offline < 1:
        raise InvalidParameter(f"offline={offline} is no share of the fleet below 1", field="offline")
    busy = math.ceil(clients_a_round / (1 - offline))  # clients of whom as many as are planned answer
    if busy > clients:
        raise InvalidParameter(
            f"of {clients} clients fewer than {clients_a_round} answer while {offline:.0%} are offline; ask fewer",
            field="clients_a_round",
        )
    allowed = 1 + (clients - busy) // clients_a_round
    apart = min(rounds, allowed if check_in is None else min(allowed, check_in))
    most = -(-rounds // apart)
    participation = {"kind": "min_sep", "min_sep": apart, "max_participations": most}
    told = f"a client takes part in at most {most} of {rounds} rounds, at least {apart} apart"
    if apart == 1:
        note = f"{told}: where everybody may be in every round, correlation gains nothing; take independent noise"
    else:
        note = f"{told}; take correlated noise, and compare it with independent noise by `factorize compare`"
    spec = {
        "workload": {**(workload or {"kind": "prefix"}), "n": rounds},
        "participation": {"kind": "single"} if most == 1 else participation,
        "mechanism": {"kind": "identity" if apart == 1 else "auto"},
    }
    return FleetAdvice(spec, apart, most, apart > 1, note)
