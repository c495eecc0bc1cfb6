"""Callers of a service: their keys, what each may do, and what each has used."""
