"""Revision 3: keys, and what belongs to them: held jobs, uploads and what was used of quotas."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "3"
down_revision = "2"


def upgrade() -> None:
    """Add the tables; releases that read revision 2 refuse the database from here on."""
    op.create_table(
        "access_keys",
        sa.Column("id", sa.String(12), primary_key=True),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("scopes", sa.String(64), nullable=False),
        sa.Column("secret_sha256", sa.String(64), nullable=False),
        sa.Column("previous_sha256", sa.String(64)),
        sa.Column("previous_until", sa.Float),
        sa.Column("created", sa.Float, nullable=False),
        sa.Column("expires", sa.Float, nullable=False),
        sa.Column("revoked", sa.Float),
        sa.Column("requests_per_minute", sa.BigInteger),
        sa.Column("open_jobs", sa.BigInteger),
        sa.Column("core_seconds_per_day", sa.BigInteger),
        sa.Column("bytes_per_day", sa.BigInteger),
    )
    op.create_table(
        "holds",
        sa.Column("spec_digest", sa.String(64), primary_key=True),
        sa.Column("owner", sa.String(64), primary_key=True),
        sa.Column("since", sa.Float, nullable=False),
    )
    op.create_index("holds_by_owner", "holds", ["owner"])
    op.create_table(
        "uploads",
        sa.Column("sha256", sa.String(64), primary_key=True),
        sa.Column("owner", sa.String(64), primary_key=True),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("since", sa.Float, nullable=False),
    )
    op.create_table(
        "usage",
        sa.Column("owner", sa.String(64), primary_key=True),
        sa.Column("measure", sa.String(16), primary_key=True),
        sa.Column("period", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("amount", sa.Float, nullable=False),
    )
    op.execute("UPDATE schema_version SET version = 3")
