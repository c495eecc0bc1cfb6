"""First and second moments of gradients: the privacy of both together."""
