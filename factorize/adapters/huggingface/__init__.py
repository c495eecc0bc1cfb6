"""Hugging Face transformers: training by its Trainer with correlated noise."""
