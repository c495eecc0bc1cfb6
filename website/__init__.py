"""The documentation's site: pages as the generator takes them, some copied from `docs`, some made from code.

The generator is Material for MkDocs (`mkdocs.yml`). It has no part in making pages, so that another one that reads
`mkdocs.yml` can take its place.
"""
