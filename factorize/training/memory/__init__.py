"""Memory of the noise in a training job: what dense noise costs, and what to take within a number of vectors."""
