"""Loopback: whether a host is this machine's own, so that nothing sent to it goes over a network."""

import ipaddress


def is_loopback(host: str) -> bool:
    """Say whether a name or address is this machine's own and nobody else's."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
