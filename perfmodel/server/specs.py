"""POST /v1/specs/validate."""

from __future__ import annotations


def validate_spec(raw: bytes) -> dict[str, object]:
    return {}
