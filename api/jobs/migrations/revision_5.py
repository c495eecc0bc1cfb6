"""Revision 5: the catalog of the store's results, and indexes by which a page of jobs is found."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "5"
down_revision = "4"


def upgrade() -> None:
    """Add tables and indexes; releases that read revision 4 refuse the database from here on."""
    op.drop_index("jobs_by_state", "jobs")
    op.create_index("jobs_by_state", "jobs", ["state", "submitted", "spec_digest"])
    op.create_index("jobs_by_workload", "jobs", ["workload", "submitted", "spec_digest"])
    op.create_table(
        "results",
        sa.Column("digest", sa.String(64), primary_key=True),
        sa.Column("spec_digest", sa.String(64), nullable=False),
        sa.Column("workload", sa.String(64), nullable=False),
        sa.Column("n", sa.BigInteger, nullable=False),
        sa.Column("created", sa.String(27), nullable=False),
        sa.Column("submitted", sa.String(40), nullable=False),
        sa.Column("form", sa.String(64)),
        sa.Column("summary", sa.Text, nullable=False),
        sa.Column("standing", sa.String(8), nullable=False),
    )
    op.create_index("results_by_time", "results", ["standing", "created", "spec_digest"])
    op.create_index("results_by_workload", "results", ["standing", "workload", "created", "spec_digest"])
    op.create_index("results_by_spec", "results", ["spec_digest"])
    op.create_index("results_by_form", "results", ["form"])
    op.create_table(
        "result_folders",
        sa.Column("folder", sa.String(2), primary_key=True),
        sa.Column("version", sa.String(255), nullable=False),
    )
    op.execute("UPDATE schema_version SET version = 5")
