"""The commands of those who run services: jobs, ledgers, workers."""
