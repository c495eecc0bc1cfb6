"""Revision 4: who asked for a job, by which request, and when it is its caller's turn."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "4"
down_revision = "3"


def upgrade() -> None:
    """Add the columns; releases that read revision 3 refuse the database from here on."""
    op.add_column("jobs", sa.Column("request_id", sa.String(64), nullable=False, server_default=""))
    op.add_column("jobs", sa.Column("client_request_id", sa.String(64), nullable=False, server_default=""))
    op.add_column("jobs", sa.Column("traceparent", sa.String(55), nullable=False, server_default=""))
    op.add_column("jobs", sa.Column("caller", sa.String(64), nullable=False, server_default=""))
    op.add_column("jobs", sa.Column("turn", sa.BigInteger, nullable=False, server_default="0"))
    op.create_index("jobs_by_turn", "jobs", ["state", "priority", "caller", "turn"])
    op.execute("UPDATE schema_version SET version = 4")
