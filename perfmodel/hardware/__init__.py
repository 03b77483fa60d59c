"""GPUs: specifications with provenance, the catalog, what-ifs and editing."""

from perfmodel.hardware.catalog import find_gpu, gpu_ids, load_gpu
from perfmodel.hardware.spec import GpuSpec

__all__ = ["GpuSpec", "find_gpu", "gpu_ids", "load_gpu"]
