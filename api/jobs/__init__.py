"""The job engine: ledger, scheduler, child processes."""
