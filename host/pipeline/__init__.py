"""Training a model whose stages are far apart: boundaries compressed both ways."""
