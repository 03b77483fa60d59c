"""Named PTX instructions for numba.cuda kernels, made by `asm.py`; each docstring cites its section of NVIDIA's PTX ISA 9.0."""
