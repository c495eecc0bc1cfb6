"""Long answers in a ledger: which are alive, by its clock."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from factorize.api.jobs.ledger import Ledger
from factorize.api.jobs.long_answers import SILENT_SECONDS, LongAnswer, LongAnswers

ASKED = "key:somebody", "a" * 64


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger(f"sqlite:///{tmp_path}/jobs.sqlite") as ledger:
        yield ledger


@pytest.mark.parametrize("seconds", [-2 * SILENT_SECONDS, 3600.0], ids=["silent", "the clock was set back"])
def test_an_answer_without_a_word_of_now_is_lost_until_its_service_tells_of_it(ledger: Ledger, seconds: float) -> None:
    elsewhere, news = LongAnswers(ledger.engine), LongAnswer("{}", None)
    elsewhere.begin(*ASKED)
    elsewhere.tell(*ASKED, news)
    assert elsewhere.look(*ASKED) == news
    with ledger.engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE answers SET told = told + {seconds}, looked = looked + {seconds}")
    assert elsewhere.look(*ASKED) is None
    looked = elsewhere.tell(*ASKED, news)
    assert looked is not None and looked > SILENT_SECONDS, "or work that nobody waits for would go on as long"
    assert elsewhere.look(*ASKED) == news
    looked = elsewhere.tell(*ASKED, news)
    assert looked is not None and looked < SILENT_SECONDS
