"""The way in: what each route asks of its callers, and the check that they may."""
