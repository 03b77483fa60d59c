"""What the assembler made of a kernel: its entry, and counts of the machine instructions that matter, by nvdisasm where it is installed."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
import tempfile
from collections import Counter
from functools import cache
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

TENSOR = ("HGMMA", "HMMA", "QMMA")
"""Tensor-core instructions that are always counted: of a warpgroup, of a warp, of a warp in 8 bits and less."""

INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P[T\d]+\s+)?([A-Z][\w.]*)", re.MULTILINE)
WIDE_LOAD = re.compile(r"^LD[GS]?\.(?:\w+\.)*128\b")


def entry_of(cubin: bytes) -> str:
    """Name of the one kernel of a cubin: an ELF file has its code in a section `.text.NAME`. Raises ValueError for anything else."""
    if cubin[:5] != b"\x7fELF\x02":
        raise ValueError("not an ELF file of 64 bits")
    (table,), (size, count, names) = struct.unpack_from("<Q", cubin, 0x28), struct.unpack_from("<3H", cubin, 0x3A)
    (text,) = struct.unpack_from("<Q", cubin, table + names * size + 0x18)  # where the names of sections are
    starts = (text + struct.unpack_from("<I", cubin, table + i * size)[0] for i in range(count))
    found = [name for start in starts if (name := cubin[start : cubin.index(b"\0", start)]).startswith(b".text.")]
    if len(found) != 1:
        raise ValueError(f"{len(found)} kernels where one is expected")
    return found[0].removeprefix(b".text.").decode()


def count(cubin: bytes) -> dict[str, int] | None:
    """Instructions of a cubin: in all, 16-byte loads (global and shared), and by name those of the tensor cores. None without nvdisasm."""
    tool = disassembler()
    if tool is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.cubin")
        path.write_bytes(cubin)
        listing = subprocess.check_output([tool, "-c", str(path)], text=True)
    return count_listing(listing)


def count_listing(listing: str) -> dict[str, int]:
    """The counts of nvdisasm's text."""
    names = INSTRUCTION.findall(listing)
    operations = Counter(name.split(".")[0] for name in names)
    tensor = {name: n for name, n in operations.items() if name.endswith("MMA")}
    return {
        "instructions": len(names) - operations["NOP"],
        "loads_16B": sum(bool(WIDE_LOAD.match(name)) for name in names),
        **dict.fromkeys(TENSOR, 0),
        **tensor,
    }


@cache
def disassembler() -> str | None:
    """nvdisasm on the PATH, or that of the package `nvidia-cuda-nvdisasm`."""
    if found := shutil.which("nvdisasm"):
        return found
    try:
        listed = files("nvidia-cuda-nvdisasm") or []
    except PackageNotFoundError:
        return None
    return next((str(path.locate()) for path in listed if path.stem == "nvdisasm" and path.parent.name == "bin"), None)
