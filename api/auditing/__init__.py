"""The audit log: who asked what of the service, in lines that nobody can change unseen."""
