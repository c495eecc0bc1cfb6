"""Arrays of JAX in a private job: batches, orders, clipped gradients and noise, as its programs trace them."""
