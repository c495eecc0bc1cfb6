"""Checks of a torch job: the rehearsal of its first step, the state that a step changes, the audit of its batches."""
