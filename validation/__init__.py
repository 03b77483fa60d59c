"""Predictions held against measurements: cited tables, CSV files, runs."""
