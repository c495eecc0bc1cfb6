"""Floor of the roots of second moments where they scale gradients."""

from __future__ import annotations

FLOOR = 0.01
"""Of the root mean square of the roots, added to each root: scales differ by a factor of about 100 at most."""
