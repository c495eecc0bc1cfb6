"""Recommendations: one mechanism for a training job, from five answers."""
