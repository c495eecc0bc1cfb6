"""The content-addressed store: objects, records, verified reading, checking, removal and revocation."""
