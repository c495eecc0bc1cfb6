"""Processes of our own: started, guarded, ended, and forked from one that has everything imported."""
