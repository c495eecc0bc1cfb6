"""Data of a torch job: which example an index names, what an item is made of, and what mixes or repeats examples."""
