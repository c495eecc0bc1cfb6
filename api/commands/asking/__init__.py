"""Commands that ask: what a spec says, what the store has, which mechanism to take."""
