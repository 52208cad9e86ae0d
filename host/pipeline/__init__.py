"""Training of a model in stages over slow links; boundaries are compressed in both directions."""
