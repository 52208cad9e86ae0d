"""What a pipeline sends from one stage to the next, made small in both directions."""
