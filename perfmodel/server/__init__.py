"""HTTP: the questions of the Python API, asked in JSON. No string of a request ever names a file."""
