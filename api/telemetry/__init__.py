"""Telemetry: lines of the log and spans of a trace, which say what they are about."""
