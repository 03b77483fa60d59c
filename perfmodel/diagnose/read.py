"""A profiler's report from a file: what it is, and for what is none how to get one."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from perfmodel.diagnose import ncu, nsys
from perfmodel.diagnose.counters import wanted
from perfmodel.errors import PerfModelError
from perfmodel.files import as_text, is_folder, read_bytes

MOST_BYTES = 128 * 2**20
"""The raw page with all sections takes 25 kB a launch: some thousand launches."""
BINARY = {
    ".ncu-rep": ("is Nsight Compute's binary report", "Export it: ncu -i {} --csv --page raw > report.csv."),
    ".nsys-rep": ("is Nsight Systems' binary report", "Export it: nsys stats --report cuda_gpu_kern_sum --format csv {} > report.csv."),
    ".qdrep": ("is Nsight Systems' binary report", "Export it: nsys stats --report cuda_gpu_kern_sum --format csv {} > report.csv."),
    ".qdstrm": ("is a raw stream of Nsight Systems", "Import it (QdstrmImporter -i {}), then run nsys stats on the report."),
    ".sqlite": ("is a database", "Run nsys stats --report cuda_gpu_kern_sum --format csv {} > report.csv."),
}
"""Ending -> what such a file is, and the mend."""
MAGIC = {b"NVR": ".ncu-rep", b"NVIDIA T": ".nsys-rep", b"SQLite f": ".sqlite", b"U3w[END]": ".qdstrm"}


@dataclass(frozen=True)
class Report:
    """One of the three is filled."""

    launches: list[ncu.Launch] = field(default_factory=list)
    summed: list[nsys.Summed] = field(default_factory=list)
    traces: list[nsys.Trace] = field(default_factory=list)

    @property
    def tool(self) -> str:
        """Whose report it is."""
        return "ncu" if self.launches else "nsys"

    @property
    def devices(self) -> list[str]:
        """The driver's names of the GPUs, where the report holds them: of a trace the one with the most work first."""
        names = [launch.words.get(ncu.DEVICE) for launch in self.launches] + [trace.device for trace in self.traces]
        return list(dict.fromkeys(name for name in names if name))

    @property
    def device(self) -> str | None:
        """The first of them."""
        return next(iter(self.devices), None)


def read_report(path: str | Path) -> Report:
    """The report at `path`. Raises PerfModelError that says what the file is instead, where it is broken, and how to get what is read."""
    if is_folder(path):
        raise PerfModelError("is a folder", file=path, mend="Give one CSV file.")
    raw = read_bytes(path, MOST_BYTES + 1)
    _refuse_binary(Path(path), raw)
    text = as_text(raw, path)
    if not text.strip():
        raise PerfModelError("is empty", file=path, mend=f"Export it again: {ncu.EXPORT}.")
    page = nsys.page_of(text)
    if page == "sum":
        return Report(summed=nsys.parse_sum(text, path))
    if page == "trace":
        return Report(traces=nsys.parse_trace(text, path))
    return Report(launches=ncu.parse_ncu(text, file=path, only=wanted() | {ncu.DEVICE}))


def _refuse_binary(path: Path, raw: bytes) -> None:
    """Raise PerfModelError for the profilers' binary files, for UTF-16, and for what is too large."""
    ending = next((kind for magic, kind in MAGIC.items() if raw.startswith(magic)), path.suffix.lower())
    if ending in BINARY:
        problem, mend = BINARY[ending]
        raise PerfModelError(problem, file=path, mend=mend.format(path.name))
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")) or raw[1:8:2] == bytes(4) != raw[:8:2]:
        raise PerfModelError("is UTF-16, as PowerShell redirects", file=path, mend="Let ncu write it: --log-file report.csv.")
    if len(raw) > MOST_BYTES:
        few = "Export less: --metrics with the counters of docs/diagnose.md, or -k and --launch-count for fewer launches."
        raise PerfModelError(f"is larger than {MOST_BYTES >> 20} MiB", file=path, mend=few)
