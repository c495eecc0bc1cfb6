"""Structures as the exact checker reads them, one file each."""
