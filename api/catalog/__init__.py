"""The catalog of a store's results: rows in a database, so that a page of a list takes no look at all of the store."""
