"""The one boundary between the units people write and the SI that the model computes in.

1 GB = 1e9 B and 1 GiB = 2**30 B are never mixed. A GEMM of M x N x K counts 2*M*N*K FLOP.
"""

MICROSECOND = 1e-6
NANOSECOND = 1e-9
PICOSECOND = 1e-12
MHZ = 1e6
KIB = 1024
MIB = 2**20
MB = 1e6
GB = 1e9
GIB = 2**30
GBPS = 1e9
TFLOPS = 1e12
