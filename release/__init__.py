"""A release: distributions that anyone can build again to the same bytes, and what states their origin."""
