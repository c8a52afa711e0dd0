"""Whether a reported success is one: random systems whose only root is known, or that have none."""
