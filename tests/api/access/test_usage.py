"""Use of quotas on a clock of its own: what is counted, for whom, and when it is refused."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import sqlalchemy as sa

from factorize.api.access import holdings as module
from factorize.api.access.caller import Caller, KeyQuotas, QuotaExhausted, Scope
from factorize.api.access.holdings import Holdings
from factorize.api.jobs.database import LISTED, REVOKED, results, writing
from factorize.api.jobs.ledger import Ledger
from factorize.api.jobs.solve_job import JobOrder, SolveJob
from factorize.errors import TooLarge

NOON = 1_800_000_000.0 // 86_400 * 86_400 + 43_200


def caller(name: str, **quotas: int) -> Caller:
    return Caller(f"key:{name}", name, frozenset({Scope.SUBMIT}), KeyQuotas(**quotas))


class Desk:
    """Submits jobs as a service does."""

    def __init__(self, ledger: Ledger) -> None:
        self.now = NOON
        self.ledger = ledger
        self.holdings = Holdings(ledger.engine, lambda: self.now)

    def submit(self, who: Caller, number: int, core_seconds: float = 1.0) -> SolveJob:
        order = JobOrder(f"{number:064x}", "{}", "prefix", 100, 60.0, caller=who.owner)
        within = lambda connection, job, claimed: self.holdings.enter(who, core_seconds, connection, job, claimed)  # noqa: E731
        return self.ledger.claim(order, within=within)[0]


@pytest.fixture
def desk(database_url: str) -> Iterator[Desk]:
    with Ledger(database_url) as ledger:
        yield Desk(ledger)


def test_open_jobs_are_those_of_a_name_and_a_refused_job_is_not_begun(desk: Desk) -> None:
    one, other, free = caller("a", open_jobs=2), caller("b", open_jobs=2), caller("c")
    for number in range(2):
        desk.submit(one, number)
    with pytest.raises(QuotaExhausted, match="a has 2 queued or running of 2 jobs at most") as refused:
        desk.submit(one, 2)
    assert refused.value.seconds == 10
    assert desk.ledger.get(f"{2:064x}") is None and not desk.holdings.has_job(one, f"{2:064x}")
    desk.submit(one, 1)  # which is open already
    desk.submit(other, 1)
    desk.submit(other, 2)
    desk.submit(one, 2)  # joined, which begins nothing
    for number in range(3, 9):
        desk.submit(free, number)
    desk.ledger.cancel(f"{0:064x}")
    desk.ledger.cancel(f"{1:064x}")
    desk.submit(one, 9)


def test_a_days_core_seconds_are_counted_again_when_a_job_is_begun_again(desk: Desk) -> None:
    one = caller("a", core_seconds_per_day=100)
    desk.submit(one, 0, 60.0)
    desk.submit(one, 0, 60.0)  # joined
    desk.ledger.cancel(f"{0:064x}")
    with pytest.raises(
        QuotaExhausted, match="100 core-seconds in a day .* and has used 60, and this takes 60"
    ) as refused:
        desk.submit(one, 0, 60.0)
    assert refused.value.seconds == 43_200
    with pytest.raises(TooLarge, match="101 core-seconds, and the key may use 100"):
        desk.submit(one, 1, 101.0)
    desk.submit(one, 2, 40.0)
    with pytest.raises(QuotaExhausted):
        desk.holdings.check_left(one)
    other = Holdings(desk.ledger.engine, lambda: NOON)  # another service
    with pytest.raises(QuotaExhausted):
        other.check_left(caller("a", core_seconds_per_day=100))
    other.check_left(caller("b", core_seconds_per_day=100))
    other.check_left(caller("a"))
    desk.now += 43_200
    desk.holdings.check_left(one)
    desk.submit(one, 0, 100.0)


def test_work_of_unknown_price_is_counted_as_it_ends(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds, one = [5.0], caller("a", core_seconds_per_day=100)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: seconds[0]))
    with pytest.raises(ZeroDivisionError), desk.holdings.working(one, 3):  # however it ends
        seconds[0] += 33.0
        raise ZeroDivisionError
    desk.holdings.check_left(one)  # 99 of 100
    with desk.holdings.working(one, 1), desk.holdings.working(caller("b"), 1):
        seconds[0] += 1.0
    with pytest.raises(QuotaExhausted, match="has used 100"):
        desk.holdings.check_left(one)


def keep(
    engine: sa.Engine, number: int, size: int, standing: str = LISTED, *, form: str | None = None, digest: str = ""
) -> None:
    row = dict.fromkeys(("workload", "created", "submitted", "summary"), "") | {"form": form, "standing": standing}
    with writing(engine) as connection:
        name = f"{number:064x}"
        connection.execute(results.insert().values(**row, digest=digest or name, spec_digest=name, bytes=size))


def test_a_form_counts_for_who_had_it_made_and_not_for_who_had_its_spec_solved(desk: Desk) -> None:
    solver, asker = caller("a", kept_bytes=1000), caller("b", kept_bytes=1000)
    desk.submit(solver, 0)
    keep(desk.ledger.engine, 0, 100)
    keep(desk.ledger.engine, 0, 900, form="key", digest="f" * 64)
    desk.holdings.keep_form(asker, "f" * 64)
    desk.holdings.check_kept(solver, 900)
    desk.holdings.check_kept(asker, 100)
    with pytest.raises(QuotaExhausted, match="900 bytes are stored for b"):
        desk.holdings.check_kept(asker, 101)


def test_kept_bytes_are_those_of_results_that_are_there_and_of_new_uploads(desk: Desk) -> None:
    engine, one = desk.ledger.engine, caller("a", kept_bytes=1000)
    for number, size, standing in ((0, 600, LISTED), (1, 600, REVOKED), (2, 600, LISTED)):
        desk.submit(caller("b") if number == 2 else one, number)
        keep(engine, number, size, standing)
    desk.holdings.check_kept(one, 400)
    with pytest.raises(QuotaExhausted, match="600 bytes are stored for a, and the limit is 1000") as refused:
        desk.holdings.check_kept(one, 401)
    assert refused.value.seconds == 3600
    desk.now = module.time.time()
    desk.holdings.keep_upload(one, "f" * 64, (5, 10))
    with pytest.raises(QuotaExhausted, match="1000 bytes are stored"):
        desk.submit(one, 3)
    desk.submit(caller("b", kept_bytes=1000), 3)
    desk.now += 8 * 86_400  # gc has removed an upload that nothing names
    desk.submit(one, 4)
