"""Grids of thousands to millions of MoE layers: the request, its points, and the parts that make a run resumable."""
