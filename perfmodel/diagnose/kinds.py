"""Which op a kernel is, by its name; and a name short enough to read."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from pydantic import Field
from ruamel.yaml import YAML

from perfmodel.files import read_text
from perfmodel.validated import Strict, validate

FILE = Path(__file__).parent / "kinds.yaml"
OTHER = "other"
ANONYMOUS = re.compile(r"<unnamed>::|\(anonymous namespace\)::|\{anonymous\}::")
INNER = re.compile(r"(at::|native::)*\w*(elementwise|index)\w*_kernel|gpu_kernel_impl")
"""Kernels of torch that say what they do in their template arguments."""


class Pattern(Strict):
    """One line of the table."""

    kind: str
    pattern: str
    source: str


class _Patterns(Strict):
    patterns: list[Pattern] = Field(min_length=1)


@cache
def patterns() -> tuple[Pattern, ...]:
    """The table, in its order."""
    return tuple(validate(_Patterns, {"patterns": YAML(typ="safe").load(read_text(FILE))}, file=FILE).patterns)


@cache
def kind_of(kernel: str) -> str:
    """Kind of op of a kernel's demangled name, `other` where no pattern is found in it."""
    return next((one.kind for one in patterns() if re.search(one.pattern, kernel, re.IGNORECASE)), OTHER)


def short_name(kernel: str, limit: int = 44) -> str:
    """The name without return type, template arguments and parameters; of torch's elementwise kernels what they compute, too."""
    plain = ANONYMOUS.sub("", "".join(filter(str.isprintable, kernel))).removeprefix("void ").replace("at::native::", "at::")
    head = re.split(r"[<(\[]", plain, maxsplit=1)[0] or plain
    if INNER.match(head):
        inner = re.findall(r"(?:at::|::)?(\w*(?:_kernel(?:_cuda)?|[Ff]unctor\w*))\b", plain[len(head) :])
        named = [word for word in inner if word not in ("gpu_kernel_impl_nocast", "BinaryFunctor", "AUnaryFunctor")]
        head = f"{head.rsplit('::', 1)[-1]} {named[0]}" if named else head
    return head if len(head) <= limit else head[: limit - 1] + "…"
