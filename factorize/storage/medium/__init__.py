"""The medium of a store: folders and files, and what is asked of them."""
