"""Long answers in the ledger, through which services behind one balancer share them.

The service that works an answer out writes how far it is, and at the end the answer. Any other service gives it to its
caller from there. A row that has gone tells its service that nobody wants the answer any more.
"""

from typing import Any, NamedTuple

import sqlalchemy as sa

from factorize.api.jobs.database import answers, clock, insert_into, reading, writing

SILENT_SECONDS = 15.0
"""Seconds without a word of its service after which an answer is lost with it."""
KEPT_SECONDS = 3600.0


class LongAnswer(NamedTuple):
    """The state of an answer in the ledger: how far it is as JSON, and the answer once it is there."""

    progress: str | None
    answer: str | None


class LongAnswers:
    """The answers of one ledger. Safe for threads.

    Args:
        engine: the database.
    """

    def __init__(self, engine: sa.Engine) -> None:
        self._engine, self._clock = engine, clock(engine)

    def begin(self, owner: str, digest: str) -> None:
        """Say that this service works on a caller's answer from now on, and forget old ones."""
        now = {"told": self._clock, "looked": self._clock, "progress": None, "answer": None}
        insert = insert_into(self._engine, answers).values(owner=owner, digest=digest, **now)
        with writing(self._engine) as connection:
            connection.execute(answers.delete().where(answers.c.told < self._clock - KEPT_SECONDS))
            connection.execute(insert.on_conflict_do_update(index_elements=["owner", "digest"], set_=now))

    def tell(self, owner: str, digest: str, news: LongAnswer) -> float | None:
        """Write how far it is; return the seconds since somebody looked elsewhere, None if nobody wants it."""
        mine = self._named(owner, digest)
        with writing(self._engine) as connection:
            connection.execute(answers.update().where(*mine).values(told=self._clock, **news._asdict()))
            # A look in the future is from before the clock was set back, and not of this moment.
            return connection.scalar(sa.select(sa.func.abs(self._clock - answers.c.looked)).where(*mine))

    def look(self, owner: str, digest: str) -> LongAnswer | None:
        """Return what is known of a caller's answer, unless its service is silent; counts as a look for it.

        A word from the future is from before the clock was set back: its service may have ended since.
        """
        heard = sa.func.abs(self._clock - answers.c.told) < SILENT_SECONDS
        alive = sa.or_(answers.c.answer.is_not(None), heard)
        mine = (*self._named(owner, digest), alive)
        with reading(self._engine) as connection:
            row: Any = connection.execute(sa.select(answers.c.progress, answers.c.answer).where(*mine)).first()
        if row is None:
            return None
        with writing(self._engine) as connection:
            connection.execute(answers.update().where(*mine).values(looked=self._clock))
        return LongAnswer(*row)

    def stop(self, owner: str, digest: str) -> None:
        """Have the service that works on a caller's answer end it."""
        with writing(self._engine) as connection:
            connection.execute(answers.delete().where(*self._named(owner, digest)))

    @staticmethod
    def _named(owner: str, digest: str) -> tuple[sa.ColumnElement[bool], ...]:
        return answers.c.owner == owner, answers.c.digest == digest
