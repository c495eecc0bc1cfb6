"""Workloads and objectives as the exact checker reads them from a spec, each kind once."""
