"""Fixed epochs: the dual in correlation blocks, by rings of recurrences, and by decompositions for any workload."""
