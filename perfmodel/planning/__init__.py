"""Capacity planning: which GPUs, format, parallelism and batch serve a load best within limits, what that costs, and what would help."""
