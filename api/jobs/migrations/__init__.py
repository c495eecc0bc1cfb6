"""The migrations of the job ledger's schema, one file per revision, and how they are run and checked."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa

from factorize.api.jobs.database import REVISION, alembic_version, changing, metadata, read_revision, revision_in

_FOLDER = str(Path(__file__).parent)


def upgrade(engine: sa.Engine, *, target: int = REVISION) -> int:
    """Bring a database to a revision, in one transaction, and return the revision that it has then.

    Args:
        engine: the database.
        target: the revision; a database that is there already, or beyond, is left as it is.

    Raises:
        StoreUnavailable: the database holds tables of the same names that are not ours.
    """
    from alembic.config import Config
    from alembic.runtime.environment import EnvironmentContext
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", _FOLDER)
    config.set_main_option("version_locations", _FOLDER)
    config.set_main_option("path_separator", "newline")
    scripts = ScriptDirectory.from_config(config)
    with changing(engine) as connection:
        if _enter(connection) < target:
            environment = EnvironmentContext(
                config, scripts, fn=lambda current, _context: scripts._upgrade_revs(str(target), current)
            )
            with environment:
                environment.configure(connection=connection, target_metadata=metadata)
                environment.run_migrations()
    return read_revision(engine)


def _enter(connection: sa.Connection) -> int:
    """Return the revision that a transaction sees; one from before the migrations is entered where alembic looks."""
    found = revision_in(connection)
    if found and not sa.inspect(connection).has_table(alembic_version.name):
        alembic_version.create(connection)
        connection.execute(alembic_version.insert().values(version_num=str(found)))
    return found


def differences(engine: sa.Engine) -> list[str]:
    """Return what the tables of a database have and those of this release have not, or the other way round."""
    from alembic.autogenerate import compare_metadata
    from alembic.runtime.migration import MigrationContext

    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "version_table": "-"})
        return [str(entry) for entry in compare_metadata(context, metadata)]
