"""The job ledger as the first release wrote it."""

from __future__ import annotations

from factorize.api.jobs.database import connect

FIRST_RELEASE = """
CREATE TABLE jobs (spec_digest VARCHAR(64) NOT NULL, workload VARCHAR(64) NOT NULL, spec TEXT NOT NULL,
  memory_mb INTEGER NOT NULL, seconds_limit FLOAT NOT NULL, threads INTEGER NOT NULL, priority INTEGER NOT NULL,
  state VARCHAR(9) NOT NULL, attempts INTEGER NOT NULL, seq BIGINT NOT NULL, owner VARCHAR(64) NOT NULL,
  task VARCHAR(96) NOT NULL, progress TEXT, error TEXT, digest VARCHAR(64), submitted VARCHAR(27) NOT NULL,
  updated VARCHAR(27) NOT NULL, PRIMARY KEY (spec_digest));
CREATE INDEX jobs_by_time ON jobs (submitted, spec_digest);
CREATE INDEX jobs_by_state ON jobs (state);
CREATE TABLE engines (id VARCHAR(64) NOT NULL, host VARCHAR(255) NOT NULL, pid INTEGER NOT NULL,
  started FLOAT NOT NULL, beat BIGINT NOT NULL, PRIMARY KEY (id));
CREATE TABLE schema_version (version INTEGER NOT NULL);
INSERT INTO schema_version VALUES (1);
INSERT INTO jobs VALUES ('d', 'prefix', '{}', 1, 1.0, 1, 0, 'queued', 2, 5, '', 'd-1', NULL, NULL, NULL, 'a', 'b')
"""


def first_release(url: str) -> None:
    """Write its tables, with one job, into an empty database."""
    engine = connect(url)
    with engine.begin() as connection:
        for statement in FIRST_RELEASE.split(";"):
            connection.exec_driver_sql(statement)
    engine.dispose()
