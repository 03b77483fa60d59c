"""The registry of kernels, as it is, and what it needs: no compiler to be read, a whole NumPy to be compiled."""

import json
import pickle
import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from types import ModuleType

import pytest

from perfmodel.errors import PerfModelError
from perfmodel.formats import format_ids
from perfmodel.kernels.variants import ARCHITECTURES, Variant, find_variants, variants


def test_known_words_and_references():
    for variant in variants():
        assert set(variant.formats) <= set(format_ids())
        assert variant.formats
        assert set(variant.archs) <= set(ARCHITECTURES)
        assert variant.archs
        module, function = variant.reference.split(":")
        assert callable(getattr(import_module(module), function)), variant.name


def test_variants_travel_to_other_processes():
    arrived = pickle.loads(pickle.dumps(variants()))
    assert [replace(variant, build=dict) for variant in arrived] == [replace(variant, build=dict) for variant in variants()]
    assert all(callable(variant.build) for variant in arrived)


def test_two_of_one_name_are_refused(monkeypatch):
    twins = ModuleType("twins")
    twins.VARIANTS = tuple(Variant(name, "mma", ("bf16",), ("sm_80",), "numpy:copy", dict) for name in ("a", "b", "a"))
    monkeypatch.setitem(sys.modules, "twins", twins)
    with pytest.raises(ValueError, match=r"\['a'\]"):
        variants(["twins"])


def test_an_unknown_name():
    with pytest.raises(PerfModelError, match="no such kernel"):
        find_variants(["nonsense"])


def test_the_list_needs_no_compiler():
    code = (
        "import sys\nfor name in ('numba_cuda', 'llvmlite', 'numba', 'cuda', 'torch'): sys.modules[name] = None\n"
        "from perfmodel.cli import main\nmain(['kernels', 'list', '--json'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [row["name"] for row in json.loads(done.stdout)["kernels"]] == [variant.name for variant in variants()]


def test_numpy_without_row_stack_is_mended():
    """As NumPy 2.5 is: numba-cuda 0.30.4 asks for `row_stack` when a kernel takes its first array."""
    pytest.importorskip("numba_cuda", reason="needs the extra `kernels`")
    code = (
        "import numpy\nif hasattr(numpy, 'row_stack'): del numpy.row_stack\n{first}\n"
        "from numba import cuda, types\n"
        "def kernel(x): x[0] = 1\n"
        "cuda.compile(kernel, (types.float32[::1],), cc=(9, 0, 'a'), device=False, abi='numba')"
    )
    mended = subprocess.run([sys.executable, "-c", code.format(first="import perfmodel.kernels")], capture_output=True, text=True)
    assert mended.returncode == 0, mended.stderr
    bare = subprocess.run([sys.executable, "-c", code.format(first="")], capture_output=True, text=True)
    assert "row_stack" in bare.stderr, "numba-cuda needs it no more: drop perfmodel.kernels.compat"
