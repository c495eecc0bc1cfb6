"""Lower bounds, proved from stored evidence."""
