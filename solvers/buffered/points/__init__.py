"""Eight points at a time: the Hessian of a buffered strategy's loss by differences of its gradient."""
