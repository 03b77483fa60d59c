"""GPU specifications: one YAML a GPU, the file name is its id."""
