"""The audit log: who asked what of the service, in rows that nobody can change unseen."""
