"""Measured services of aiconfigurator-core: rows, flags, fits of the engine and scores."""
