"""Revision 2: how often a job's own process died, beside how often it was started."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "2"
down_revision = "1"


def upgrade() -> None:
    """Add the column; releases that read revision 1 refuse the database from here on."""
    op.add_column("jobs", sa.Column("deaths", sa.Integer, nullable=False, server_default="0"))
    op.execute("UPDATE schema_version SET version = 2")
