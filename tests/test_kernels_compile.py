"""Compiling kernels without a GPU, and the commands over it. The kernels here are toys; those of the registry are checked as they are."""

import json
from dataclasses import replace
from functools import partial
from importlib import import_module

import pytest
from numba import cuda, types

from perfmodel.cli import main
from perfmodel.errors import MissingRequirementError, PerfModelError
from perfmodel.kernels import compile as compiling
from perfmodel.kernels import sass
from perfmodel.kernels.compile import SHARED_LIMIT, Compiled, capability, check_all, check_one, compile_source, problem_of
from perfmodel.kernels.ptx.registers import decrease_registers, increase_registers
from perfmodel.kernels.variants import ARCHITECTURES, KernelSource, Variant

THREADS = 128
LISTING = """
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0030*/                   LDG.E.NA.LTC128B.128.CONSTANT R8, desc[UR4][R2.64] ;
        /*0040*/              @!P0 LDG.E.64.CONSTANT R8, desc[UR4][R2.64] ;
        /*0050*/                   LDS.128 R4, [R1] ;
        /*0060*/              @P1  HMMA.16816.F32.BF16 R8, R4, R2, RZ ;
        /*0380*/                   HGMMA.64x64x16.F32.BF16 R24, R68, gdesc[UR4], R24, gsb0 ;
        /*0390*/             @!UP2 UTMALDG.2D [UR8], [UR4] ;
        /*0400*/                   STS.128 [R1], R4 ;
        /*0410*/                   NOP;
"""

TOY_MODULE = """
from numba import types
from perfmodel.kernels.variants import KernelSource

def good():
    def kernel(x):
        x[0] = 1
    return KernelSource(kernel, (types.float32[::1],), 32, 0, (32, 1))

def bad():
    raise RuntimeError("no kernel")
"""


def copy_kernel(x, y):
    i = cuda.grid(1)
    if i < x.size:
        y[i] = x[i]


def reversing_kernel(x, y):
    """Declares 1 KiB of shared memory."""
    held = cuda.shared.array(256, types.float32)
    i = cuda.threadIdx.x
    held[i] = x[i]
    cuda.syncthreads()
    y[i] = held[THREADS - 1 - i]


def spilling_kernel(x, y):
    """Holds 64 values over a barrier, where a thread may have 32 registers."""
    held = cuda.local.array(64, types.float32)
    i = cuda.threadIdx.x
    for k in range(64):
        held[k] = x[i * k]
    cuda.syncthreads()
    for k in range(64):
        y[i + k] = held[k] + held[(k * 7) % 64] * held[63 - k]


@cuda.jit(device=True)
def twice(value):
    return 2 * value


def doubling_kernel(x, y):
    y[0] = twice(x[0])


def two_part_kernel(x, y):
    """One warpgroup hands its registers to the other."""
    if cuda.threadIdx.x < 128:
        decrease_registers(40)
        y[0] = x[0]
    else:
        increase_registers(232)
        y[cuda.threadIdx.x] = x[1]


def wrong_kernel(x, y):
    y[0] = x.no_such_attribute


def source(function=copy_kernel, threads=THREADS, shared_bytes=0, blocks=1) -> KernelSource:
    array = types.float32[::1]
    return KernelSource(function, (array, array), threads, shared_bytes, (threads, blocks))


def toy(name="toy", archs=ARCHITECTURES, **choices) -> Variant:
    return Variant(name, "reference", ("bf16",), archs, "numpy:copy", partial(source, **choices))


def compiled(**changes) -> Compiled:
    return replace(Compiled("x", "sm_89", b"", "x", registers=32, shared_bytes=0, spill_bytes=0, sass=None, warnings=()), **changes)


@pytest.fixture
def compiler():
    pytest.importorskip("numba_cuda", reason="needs the extra `kernels`")


@pytest.mark.usefixtures("compiler")
class TestCompile:
    @pytest.mark.parametrize("arch", ARCHITECTURES)
    def test_every_architecture(self, arch):
        made = compile_source(source(reversing_kernel, shared_bytes=512), arch, "reverse")
        assert made.cubin[:4] == b"\x7fELF"
        assert made.cubin[49] == int(arch.strip("sm_a"))  # the second byte of the header's flags is the architecture
        assert made.entry.encode() in made.cubin
        assert "reversing_kernel" in made.entry
        assert (made.name, made.arch) == ("reverse", arch)
        assert 4 <= made.registers <= 32
        assert made.shared_bytes == 1024 + 512
        assert made.spill_bytes == 0
        assert problem_of(made) is None

    def test_spills_are_found(self):
        # 1,024 threads and 2 CTAs on an SM of 65,536 registers: 32 a thread
        row = check_one(toy(function=spilling_kernel, threads=1024, blocks=2), "sm_90a")
        assert row.registers == 32
        assert row.spill_bytes > 0
        assert not row.ok
        assert row.problem == f"spills {row.spill_bytes} bytes of registers"

    def test_device_functions_compile_without_a_gpu(self):
        assert check_one(toy(function=doubling_kernel), "sm_80").ok

    def test_registers_can_change_hands(self):
        """The assembler ignores `setmaxnreg`, and says so, in code that is to be linked with other code."""
        row = check_one(toy(function=two_part_kernel, threads=256), "sm_90a")
        assert row.ok, row.problem
        assert row.registers == 232

    def test_warnings_of_the_assembler_are_found(self):
        unbounded = replace(source(two_part_kernel, threads=256), launch_bounds=(256,))
        row = check_one(replace(toy(), build=lambda: unbounded), "sm_90a")
        assert not row.ok
        assert "Potential Performance Loss: 'setmaxnreg' ignored" in row.problem

    def test_without_the_bounds_nothing_spills(self):
        assert check_one(toy(function=spilling_kernel, threads=128, blocks=1), "sm_90a").ok

    def test_too_much_shared_memory_is_found_where_it_does_not_fit(self):
        variant = toy(shared_bytes=128 * 1024)
        verdicts = {arch: check_one(variant, arch).ok for arch in ARCHITECTURES}
        assert verdicts == {"sm_80": True, "sm_89": False, "sm_90a": True, "sm_100a": True, "sm_120a": False}

    def test_a_kernel_that_does_not_compile_is_a_finding(self):
        row = check_one(toy(function=wrong_kernel), "sm_90a")
        assert not row.ok
        assert "no_such_attribute" in row.problem
        assert "\n" not in row.problem
        assert row.registers is row.spill_bytes is row.shared_bytes is None

    @pytest.mark.skipif(sass.disassembler() is None, reason="needs nvdisasm")
    def test_machine_instructions_are_counted(self):
        counts = compile_source(source(), "sm_90a", count_sass=True).sass
        assert counts["instructions"] > 5
        assert counts["HGMMA"] == counts["HMMA"] == counts["loads_16B"] == 0

    @pytest.mark.parametrize("jobs", [1, 2])
    def test_all_in_the_order_asked_for(self, jobs, tmp_path, monkeypatch):
        (tmp_path / "toy_kernels.py").write_text(TOY_MODULE)
        monkeypatch.syspath_prepend(tmp_path)  # other processes get the path, and find the module there
        toys = import_module("toy_kernels")
        good, bad = replace(toy("good"), build=toys.good), replace(toy("bad"), build=toys.bad)
        heard = []
        rows = check_all([(good, "sm_90a"), (bad, "sm_80"), (good, "sm_80")], jobs=jobs, done=heard.append)
        assert [(row.name, row.arch, row.ok) for row in rows] == [
            ("good", "sm_90a", True),
            ("bad", "sm_80", False),
            ("good", "sm_80", True),
        ]
        assert sorted(row.seconds for row in heard) == sorted(row.seconds for row in rows)


def test_what_is_wrong_with_a_kernel():
    assert problem_of(compiled(shared_bytes=99 * 1024)) is None
    assert "101377 bytes of shared memory, sm_89 has 101376" in problem_of(compiled(shared_bytes=99 * 1024 + 1))
    assert problem_of(compiled(spill_bytes=8)) == "spills 8 bytes of registers"
    assert problem_of(compiled(warnings=("serialised",))) == "serialised"


def test_every_architecture_has_a_limit():
    assert set(SHARED_LIMIT) == set(ARCHITECTURES)


@pytest.mark.parametrize(
    ("arch", "expected"), [("sm_80", (8, 0)), ("sm_90a", (9, 0, "a")), ("sm_100a", (10, 0, "a")), ("sm_120a", (12, 0, "a"))]
)
def test_architectures_as_numba_names_them(arch, expected):
    assert capability(arch) == expected


def test_an_architecture_that_is_not_one():
    with pytest.raises(PerfModelError, match="Did you mean sm_90a"):
        capability("sm90")


def test_counts_of_a_listing():
    assert sass.count_listing(LISTING) == {"instructions": 8, "loads_16B": 2, "HGMMA": 1, "HMMA": 1, "QMMA": 0}


def run(*arguments) -> int:
    with pytest.raises(SystemExit) as stopped:
        main(["kernels", *arguments])
    return stopped.value.code


class TestCommands:
    @pytest.fixture
    def toys(self, monkeypatch):
        registry = {"good": toy("good", ("sm_90a",)), "bad": toy("bad", ("sm_80", "sm_90a"), function=wrong_kernel)}
        monkeypatch.setattr("perfmodel.kernels.variants.variants", lambda: tuple(registry.values()))

    @pytest.mark.usefixtures("toys")
    def test_list(self, capsys):
        assert run("list", "--json") == 0
        rows = json.loads(capsys.readouterr().out)["kernels"]
        assert rows[0] == {"name": "good", "kind": "reference", "formats": ["bf16"], "archs": ["sm_90a"], "reference": "numpy:copy"}
        assert run("list") == 0
        assert "sm_80 sm_90a" in capsys.readouterr().out

    @pytest.mark.usefixtures("toys", "compiler")
    def test_check_of_a_good_kernel(self, capsys):
        assert run("check", "good", "--jobs", "1", "--json") == 0
        printed = capsys.readouterr()
        (row,) = json.loads(printed.out)["kernels"]
        assert {key: row[key] for key in ("name", "kind", "arch", "shared_bytes", "spill_bytes", "ok")} == {
            "name": "good", "kind": "reference", "arch": "sm_90a", "shared_bytes": 0, "spill_bytes": 0, "ok": True,
        }  # fmt: skip
        assert row["registers"] > 0
        assert "[1/1] good sm_90a: ok" in printed.err

    @pytest.mark.skipif(sass.disassembler() is None, reason="needs nvdisasm")
    @pytest.mark.usefixtures("toys", "compiler")
    @pytest.mark.parametrize(("flag", "counted"), [("--sass", True), ("--no-sass", False)])
    def test_the_verdict_is_the_same_without_counts(self, capsys, flag, counted):
        assert run("check", "good", "--jobs", "1", flag, "--json") == 0
        (row,) = json.loads(capsys.readouterr().out)["kernels"]
        assert (row["ok"], row["spill_bytes"], row["sass"] is not None) == (True, 0, counted)

    @pytest.mark.usefixtures("toys", "compiler")
    def test_check_fails_where_one_kernel_is_wrong(self, capsys):
        assert run("check", "--arch", "sm_90a", "--jobs", "1") == 1
        printed = capsys.readouterr()
        assert "no_such_attribute" in printed.err
        assert "no_such_attribute" in printed.out
        assert printed.out.count("good") == 1

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["check", "--arch", "sm_90"], "Did you mean sm_90a"),
            (["check", "goood"], "Did you mean good"),
            (["check", "--jobs", "0"], "jobs"),
        ],
    )
    @pytest.mark.usefixtures("toys")
    def test_bad_input(self, capsys, arguments, message):
        assert run(*arguments) == 2
        assert message in capsys.readouterr().err

    @pytest.mark.usefixtures("toys")
    def test_without_the_compiler_the_extra_is_named(self, monkeypatch, capsys):
        monkeypatch.setattr(compiling, "_is_there", lambda module: False)
        assert run("check") == 3
        message = capsys.readouterr().err
        assert "perfmodel[kernels]" in message
        assert "numba-cuda and cuda-core" in message


def test_the_missing_requirement_is_an_error_of_its_own(monkeypatch):
    monkeypatch.setattr(compiling, "_is_there", lambda module: module != "cuda.core")
    with pytest.raises(MissingRequirementError, match="cuda-core"):
        compiling.require_compiler()


class TestEntry:
    def test_of_a_cubin(self):
        from perfmodel.kernels import stream

        variant = stream.VARIANTS[0]
        made = compiling.compile_variant(variant, "sm_80", count_sass=False)
        assert made.entry.startswith("_Z")
        assert variant.build().function.__name__ in made.entry

    def test_of_anything_else(self):
        with pytest.raises(ValueError, match="not an ELF file"):
            sass.entry_of(b"no ELF")
