"""Rounds of federated training: the names of clients, and the state that a server keeps from one round to the next."""
