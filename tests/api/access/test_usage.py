"""Counts of quotas on a clock of their own, by one service and by two on one ledger."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from factorize.api.access import usage as module
from factorize.api.access.caller import EVERYTHING, Caller, Quotas
from factorize.api.access.refusals import QuotaExhausted
from factorize.api.access.usage import UsageMeter
from factorize.api.jobs.ledger import Ledger
from factorize.errors import TooLarge

NOON = 1_800_000_000.0 // 86_400 * 86_400 + 43_200
CALLER = Caller("key:a", "a", EVERYTHING, Quotas(requests_per_minute=3, core_seconds_per_day=100))
OTHER = Caller("key:b", "b", EVERYTHING, CALLER.quotas)
FREE = Caller("key:c", "c", EVERYTHING)


@pytest.fixture(params=["sqlite", "postgresql"])
def engine(request: pytest.FixtureRequest, tmp_path: Path):
    on_file = request.param == "sqlite"
    url = f"sqlite:///{tmp_path}/jobs.sqlite" if on_file else request.getfixturevalue("postgres").database()
    with Ledger(url) as ledger:
        yield ledger.engine


def test_a_quota_ends_at_its_limit_and_begins_anew_with_the_period(engine) -> None:
    now = [NOON + 20]
    meter = UsageMeter(engine, lambda: now[0])
    for _ in range(3):
        meter.check(CALLER, "requests_per_minute", 1)
        meter.add(CALLER, "requests_per_minute", 1)
    with pytest.raises(QuotaExhausted, match="3 requests in 60 s, of which 3 are used") as refused:
        meter.check(CALLER, "requests_per_minute", 1)
    assert refused.value.seconds == 40
    meter.check(OTHER, "requests_per_minute", 1)
    meter.check(FREE, "requests_per_minute", 1e9)
    now[0] += 40
    meter.check(CALLER, "requests_per_minute", 3)


def test_two_services_count_together(engine) -> None:
    now = [NOON]
    one, two = (UsageMeter(engine, lambda: now[0]) for _ in range(2))
    one.add(CALLER, "requests_per_minute", 2)
    assert two.is_behind(CALLER)
    one.sync(CALLER)
    two.sync(CALLER)
    assert not two.is_behind(CALLER)
    two.check(CALLER, "requests_per_minute", 1)
    two.add(CALLER, "requests_per_minute", 1)
    two.sync(CALLER)
    one.sync(CALLER)
    for meter in (one, two):
        with pytest.raises(QuotaExhausted, match="of which 3 are used"):
            meter.check(CALLER, "requests_per_minute", 1)


def test_what_was_used_is_known_after_a_restart(engine) -> None:
    meter = UsageMeter(engine, lambda: NOON)
    meter.charge(CALLER, 60.0)
    meter.close()
    again = UsageMeter(engine, lambda: NOON + 1)
    with pytest.raises(
        QuotaExhausted, match="100 core-seconds in 86400 s, of which 60 are used, and this takes 41"
    ) as e:
        again.charge(CALLER, 41.0)
    assert e.value.seconds == 43_199
    again.charge(CALLER, 40.0)
    with pytest.raises(TooLarge, match="101 core-seconds, and the key has 100"):
        again.charge(CALLER, 101.0)


def test_work_of_unknown_price_is_counted_as_it_ends_and_refused_when_nothing_is_left(
    engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = [5.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: seconds[0]))
    meter = UsageMeter(engine, lambda: NOON)
    meter.check_left(CALLER)
    with pytest.raises(ZeroDivisionError), meter.working(CALLER, 3):  # however it ends
        seconds[0] += 33.0
        raise ZeroDivisionError
    meter.check_left(CALLER)  # 99 of 100
    with meter.working(CALLER, 1), meter.working(FREE, 1):
        seconds[0] += 1.0
    with pytest.raises(
        QuotaExhausted, match="100 core-seconds in 86400 s, of which 100 are used; try again"
    ) as refused:
        meter.check_left(CALLER)
    assert refused.value.seconds == 43_200
    for other in (OTHER, FREE):
        meter.check_left(other)
