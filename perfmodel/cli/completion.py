"""What a shell offers for a value after Tab: the ids that there are. Paths it completes by itself."""

from __future__ import annotations


def complete_gpu(incomplete: str) -> list[str]:
    """GPUs of the catalogue that begin so."""
    from perfmodel.hardware import gpu_ids

    return _beginning(incomplete, gpu_ids())


def complete_model(incomplete: str) -> list[str]:
    """Bundled models that begin so."""
    from perfmodel.workload import model_ids

    return _beginning(incomplete, model_ids())


def complete_format(incomplete: str) -> list[str]:
    """Formats that begin so."""
    from perfmodel.formats import format_ids

    return _beginning(incomplete, format_ids())


def complete_kernel(incomplete: str) -> list[str]:
    """Kernel profiles that begin so, and `auto`."""
    from perfmodel.profiles import profile_ids

    return _beginning(incomplete, ["auto", *profile_ids()])


def _beginning(incomplete: str, ids: list[str]) -> list[str]:
    return [name for name in ids if name.startswith(incomplete)]
