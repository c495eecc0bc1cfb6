"""The content-addressed store: objects, records, verified reading, checks, removal and revocation."""
