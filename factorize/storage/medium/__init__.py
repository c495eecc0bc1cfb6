"""The media of a store: directories and buckets, and the operations on them."""
