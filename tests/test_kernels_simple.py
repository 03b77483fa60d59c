"""The plain kernel, run by the CUDA simulator in a process of its own: numba chooses the simulator when it is imported."""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("numba_cuda", reason="needs the extra `kernels`")

from perfmodel.kernels.compile import compile_variant
from perfmodel.kernels.simple import VARIANTS
from perfmodel.kernels.variants import ARCHITECTURES
from perfmodel.kernels.weights import FORMATS

PROGRAM = """
import json
import numpy as np
from numba import cuda
from perfmodel.formats import get_format
from perfmodel.formats.blocks import encode
from perfmodel.formats.format import Scheme
from perfmodel.kernels import reference
from perfmodel.kernels.simple_kernel import grouped_gemm
from perfmodel.kernels.weights import FORMATS, Weights

source = np.random.default_rng(0)
cases = [(form, get_format(form).weights, [0, 1, 1, 4]) for form in FORMATS]
cases += [("int4-w4a16", Scheme(element="int4", per="group", block=(1, 32), scale="bf16", zero_point=True), [0, 0, 2, 4])]
cases += [("mxfp4-w4a16", get_format("mxfp4").weights, [0, 4, 4, 4])]
errors = []
for form, scheme, offsets in cases:
    weights = Weights.of(encode(source.standard_normal((3, 5, 128)), scheme), form)
    x = source.standard_normal((4, 128)).astype(np.float32)
    y = grouped_gemm(x, weights, np.array(offsets), threads=7)
    errors.append(reference.relative_error(y, reference.grouped_gemm(x, weights, np.array(offsets))))
nothing = grouped_gemm(x[:0], weights, np.zeros(4, int))
print(json.dumps({"simulated": type(cuda.jit(lambda: None)).__module__, "errors": errors, "nothing": nothing.shape}))
"""


@pytest.fixture(scope="module")
def simulated():
    environment = os.environ | {"NUMBA_ENABLE_CUDASIM": "1"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def test_it_ran_in_the_simulator(simulated):
    assert "simulator" in simulated["simulated"]


def test_every_format_zero_points_and_one_busy_expert(simulated):
    assert len(simulated["errors"]) == len(FORMATS) + 2
    assert max(simulated["errors"]) < 1e-7  # the output is single precision, sums are double


def test_no_tokens(simulated):
    assert simulated["nothing"] == [0, 5]


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_it_compiles_without_spills(arch):
    made = compile_variant(VARIANTS[0], arch)
    assert made.spill_bytes == 0
    assert made.shared_bytes == 0
