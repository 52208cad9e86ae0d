"""Radio modems on the bench: found, set up, compared."""
