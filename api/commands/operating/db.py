"""`factorize db`: the job ledger's schema brought up to date, checked, and copied."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from factorize.api.terminal.options import Database, Output, StoreUrl
from factorize.api.terminal.output import OutputForm, emit
from factorize.errors import InvalidParameter, StoreUnavailable

if TYPE_CHECKING:
    import sqlalchemy as sa

db = typer.Typer(name="db", no_args_is_help=True, help="Upgrade, check or back up the job ledger.")
To = Annotated[
    Path, typer.Option("--to", metavar="FILE", help="SQLite file to write; must not exist.", show_default=False)
]


@db.command()
def upgrade(database: Database = None, store: StoreUrl = None, output: Output = OutputForm.TEXT) -> None:
    """Bring the ledger's tables to the revision that this release reads, in one transaction.

    Services of an earlier release refuse the ledger from then on: stop them first.
    """
    from factorize.api.jobs.database import read_revision, usable
    from factorize.api.jobs.migrations import upgrade as migrate

    engine = _engine(database, store)
    with usable(engine):
        before, after = read_revision(engine), migrate(engine)
    engine.dispose()
    text = f"revision      {after}" + ("" if before == after else f" (was {before or 'empty'})")
    emit(output, {"database": _name(engine), "before": before, "revision": after}, text)


@db.command()
def check(database: Database = None, store: StoreUrl = None, output: Output = OutputForm.TEXT) -> None:
    """Compare the ledger's tables with those of this release, and count its jobs and services. Changes nothing."""
    from factorize.api.jobs.database import REVISION, other_revision, read_revision, usable
    from factorize.api.jobs.ledger import Ledger
    from factorize.api.jobs.migrations import differences

    engine = _engine(database, store)
    with usable(engine):
        found = read_revision(engine)
        wrong = differences(engine) if found == REVISION else [other_revision(found)]
    url = engine.url.render_as_string(hide_password=False)
    engine.dispose()
    if wrong:
        raise StoreUnavailable(f"the job ledger is not this release's: {'; '.join(wrong)[:2000]}")
    with Ledger(url) as ledger:
        counts, services = ledger.counts(), len(ledger.engines())
    lines = [f"revision      {found}", f"services      {services}"]
    lines += [f"{state:<14}{count}" for state, count in counts.items()]
    document = {"database": _name(engine), "revision": found, "services": services, "jobs": counts}
    emit(output, document, "\n".join(lines))


@db.command()
def backup(to: To, database: Database = None, store: StoreUrl = None, output: Output = OutputForm.TEXT) -> None:
    """Copy the ledger, as it is at one moment, into an SQLite file on which a service can be started.

    Results are in the store and not in the ledger. Services may go on using the ledger meanwhile.
    """
    from factorize.api.jobs.database import usable
    from factorize.api.jobs.migrations import copy_ledger

    if to.exists():
        raise InvalidParameter(f"{to} exists; name another file", field="to")
    engine = _engine(database, store)
    with usable(engine):
        rows = copy_ledger(engine, to)
    engine.dispose()
    emit(output, {"database": _name(engine), "file": str(to), "jobs": rows}, f"{to}: {rows} jobs")


def _engine(database: str | None, store: str | None) -> sa.Engine:
    """The ledger of the options or the settings."""
    from factorize.api.jobs.database import connect, existing
    from factorize.api.settings import ledger_url, load_settings

    return connect(existing(ledger_url(load_settings(database=database, store=store))))


def _name(engine: sa.Engine) -> str:
    return engine.url.render_as_string(hide_password=True)
