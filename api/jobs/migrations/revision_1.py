"""Revision 1: jobs, engines and the number by which earlier releases tell a schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "1"
down_revision = None


def upgrade() -> None:
    """Create the tables of the first release."""
    op.create_table(
        "jobs",
        sa.Column("spec_digest", sa.String(64), primary_key=True),
        sa.Column("workload", sa.String(64), nullable=False),
        sa.Column("spec", sa.Text, nullable=False),
        sa.Column("memory_mb", sa.Integer, nullable=False),
        sa.Column("seconds_limit", sa.Float, nullable=False),
        sa.Column("threads", sa.Integer, nullable=False),
        sa.Column("priority", sa.Integer, nullable=False),
        sa.Column("state", sa.String(9), nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("seq", sa.BigInteger, nullable=False),
        sa.Column("owner", sa.String(64), nullable=False),
        sa.Column("task", sa.String(96), nullable=False),
        sa.Column("progress", sa.Text),
        sa.Column("error", sa.Text),
        sa.Column("digest", sa.String(64)),
        sa.Column("submitted", sa.String(27), nullable=False),
        sa.Column("updated", sa.String(27), nullable=False),
    )
    op.create_index("jobs_by_time", "jobs", ["submitted", "spec_digest"])
    op.create_index("jobs_by_state", "jobs", ["state"])
    op.create_table(
        "engines",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("host", sa.String(255), nullable=False),
        sa.Column("pid", sa.Integer, nullable=False),
        sa.Column("started", sa.Float, nullable=False),
        sa.Column("beat", sa.BigInteger, nullable=False),
    )
    version = op.create_table("schema_version", sa.Column("version", sa.Integer, nullable=False))
    assert version is not None  # None only where SQL is printed
    op.bulk_insert(version, [{"version": 1}])
