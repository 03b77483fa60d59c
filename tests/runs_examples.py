"""Runs for tests, and a runner that needs no GPU."""

from perfmodel.validation.runs.points import GemmPoint, LayerPoint
from perfmodel.validation.runs.record import Run

ABOUT = {
    "device": "NVIDIA H200", "driver": "580.1", "cuda": "13.0", "python": "3.12.3", "date": "2026-11-30T00:00:00+00:00",
    "versions": {"torch": "2.11.0"},
}  # fmt: skip

POINTS = [
    GemmPoint("ours", "mxfp4-w4a16", 16, 4096, 7168, 64),
    GemmPoint("torch", "bf16", 16, 4096, 7168, 64),
    LayerPoint("mxfp4-w4a16", 32, 4, 2880, 2880, 512),
    LayerPoint("mxfp4-w4a8", 32, 4, 2880, 2880, 4096, "zipf:1"),
]


def a_run(number=0, **fields):
    """A grouped GEMM; `number` makes it another measurement."""
    plain = {
        "run_id": "r1", "suite": "quick", "point": f"gemm {number}", "date": "2026-11-30T00:00:00+00:00", "commit": "abc",
        "device": "NVIDIA H200", "gpu": "h200", "kind": "grouped-gemm", "kernel": "numba-wgmma-mxfp4-w4a16-n64", "profile": "numba-wgmma",
        "ours": True, "format": "mxfp4-w4a16", "experts": 16, "n": 4096, "k": 7168, "tokens_per_expert": 64, "tokens": 1024,
        "us": 104.25 + number, "hold_s": 0.05, "flop": 6.0e10, "bytes": 2.7e8,
    }  # fmt: skip
    return Run(**(plain | fields))


class FakeRunner:
    """Takes 100 us for everything; `fail` and `stop` name points at which it fails or is interrupted."""

    about = ABOUT

    def __init__(self, fail=(), stop=None, counters=None):
        self.fail, self.stop, self.counters, self.seen = fail, stop, counters, []

    def measure(self, point, chosen):
        self.seen.append(point.name)
        if point.name == self.stop:
            raise KeyboardInterrupt
        if point.name in self.fail:
            raise RuntimeError("CUDA out of memory")
        names = [f"numba-{tile.kind}-{point.format}-n{tile.columns}" for tile in chosen] or ["torch-grouped-mm"]
        times = {
            "us": 100.0,
            "us_low": 99.0,
            "us_high": 101.0,
            "burst_us": 98.0,
            "rel_err": 1e-3,
            "nan": 0,
            "sm_MHz": 1900,
            "power_W": 500.0,
        }
        return {"kernel": "+".join(names)} | (self.counters or times)
