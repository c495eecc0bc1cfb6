"""Laws of participation as schemes: the base, and those in which an example draws bins."""
