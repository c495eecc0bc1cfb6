"""The operator trail: what commands do to a store or its keys, as rows of the same audit log as the service's."""

from __future__ import annotations

import getpass
from typing import Any

from factorize.api.auditing.audit_log import AuditLog
from factorize.api.jobs.ledger import Ledger
from factorize.api.settings import audit_url, load_settings


def audited(event: str, subject: str, *, store: str | None, **detail: Any) -> None:
    """Write down what a command has done to a store.

    Args:
        event: `revocation` or `deletion`.
        subject: digest of the result.
        store: URL of the store as the command was given it; the setting by default.
        detail: numbers and names; never a secret.

    Raises:
        StoreUnavailable: the row cannot be written.
    """
    with Ledger(audit_url(load_settings(store=store))) as ledger:
        AuditLog(ledger.engine).add(event, actor=operator(), subject=subject, detail=detail)


def operator() -> str:
    """Return who a command's user is in the audit log."""
    try:
        return f"operator:{getpass.getuser()}"
    except (KeyError, OSError):  # a container's user has no name
        return "operator:unknown"
