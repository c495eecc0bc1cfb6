"""Workers: processes that stay and answer one question after the other, and the pool that has them."""
