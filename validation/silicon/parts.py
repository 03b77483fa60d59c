"""The parquet files of aiconfigurator-core: where they are, and their columns as labels."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel.errors import MissingRequirementError
from perfmodel.validation.measurements import Integers, Labels
from perfmodel.validation.silicon.names import names

MILLISECOND = 1e-3


@cache
def data_folder() -> Path:
    """`systems/data` of the installed package. Raises MissingRequirementError where it is not."""
    found = find_spec("aiconfigurator_core")
    if found is None or not found.submodule_search_locations:
        raise MissingRequirementError(
            "the measured tables come with the package aiconfigurator-core",
            mend="Install the extra `silicon`: pip install 'perfmodel[silicon]'.",
        )
    return Path(found.submodule_search_locations[0]) / "systems" / "data"


@dataclass(frozen=True)
class Part:
    """One parquet file."""

    path: Path
    gpu: str
    framework: str
    version: str

    @property
    def source(self) -> str:
        """FRAMEWORK VERSION, as traps know it."""
        return f"{self.framework} {self.version}"


def parts(table: str) -> list[Part]:
    """The files of a table (`gemm/*/*/gemm_perf.parquet`, say) of all GPUs in scope. Raises MissingRequirementError without the data."""
    known, found = names(), []
    for path in sorted(data_folder().glob(f"*/{table}")):
        folder, framework, version = path.parts[-5], path.parts[-3], path.parts[-2]
        if folder in known.gpus:
            found.append(Part(path, known.gpus[folder], framework, version))
    return found


def chosen_labels(texts: list[str], index: Integers) -> Labels:
    """Labels of texts[index]."""
    values = tuple(dict.fromkeys(texts))
    codes = np.array([values.index(text) for text in texts], np.int32)
    return Labels(codes[index], values)


def text_labels(column: Any) -> Labels:
    """A text column of a table."""
    encoded = column.combine_chunks().dictionary_encode()
    if hasattr(encoded, "chunks"):
        encoded = encoded.combine_chunks()
    return Labels(encoded.indices.to_numpy().astype(np.int32), tuple(encoded.dictionary.to_pylist()))
