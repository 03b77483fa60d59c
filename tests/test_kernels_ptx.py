"""PTX instructions from numba kernels: each is compiled and assembled for every architecture that has it; none is run here."""

import re
from importlib import import_module
from pkgutil import iter_modules

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="needs the extra `kernels`")

from numba import types
from numba.core.errors import TypingError

import perfmodel.kernels.ptx as package
from perfmodel.kernels.compile import compile_source, link, to_ltoir, to_ptx
from perfmodel.kernels.ptx.asm import (
    F32,
    IMMEDIATE,
    U32,
    U64,
    F32x4,
    Immediate,
    Instruction,
    U32x2,
    U32x4,
    asm,
    instruction,
)
from perfmodel.kernels.ptx.memory import array_address, load_shared_x4, store_global_f32, to_shared
from perfmodel.kernels.ptx.mma import mma_bf16
from perfmodel.kernels.ptx.registers import zeros
from perfmodel.kernels.ptx.wgmma import descriptor_base, wgmma, wgmma_wait
from perfmodel.kernels.variants import ARCHITECTURES, KernelSource

MODULES = [import_module(f"{package.__name__}.{module.name}") for module in iter_modules(package.__path__)]
NAMED = {name: value for module in MODULES for name, value in vars(module).items() if hasattr(value, "ptx")}
GENERATED = [
    wgmma(8), wgmma(256), wgmma(128, "e4m3"), wgmma(64, blocks=2, steps=2), wgmma(128, a="shared"), wgmma(64, "e4m3", a="shared", blocks=2),
]  # fmt: skip
CONSTANTS = {"decrease_registers": 40, "increase_registers": 232}
"""Constants that an instruction takes, where 1 will not do."""


def archs_of(made: Instruction) -> list[str]:
    """The architectures that have the instruction."""
    least = int(made.needs.strip("sm_a"))
    return [arch for arch in ARCHITECTURES if (arch == made.needs if made.needs.endswith("a") else int(arch.strip("sm_a")) >= least)]


def calling_kernel(intrinsic) -> KernelSource:
    """A kernel whose arguments are those of the instruction, and which stores every element of its result."""
    made = intrinsic.ptx
    variable = {name: kind for name, kind in made.parameters.items() if kind is not IMMEDIATE}
    arguments = [name if name in variable else str(CONSTANTS.get(made.name, 1)) for name in made.parameters]
    elements = list(made.result) if isinstance(made.result, types.BaseTuple) else [made.result]
    stores = [f"    out_[{i}] = result[{i}]" for i in range(len(elements))] if len(elements) > 1 else ["    out_[0] = result"]
    lines = [f"def kernel({', '.join(['out_', *variable])}):", f"    result = intrinsic({', '.join(arguments)})"]
    space = {"intrinsic": intrinsic}
    exec("\n".join([*lines, *(stores if made.result != types.void else [])]), space)
    stored = types.uint32 if made.result == types.void else elements[0]
    return KernelSource(space["kernel"], (stored[::1], *variable.values()), 128, 0, (128, 1))


def mnemonics(text: str) -> list[str]:
    """Names of the instructions of a text: `ld.shared.v4.b32` of `ld.shared.v4.b32 {$out}, [$address];`."""
    statements = re.split(r"[;\n{}:]", re.sub(r"\{?\$\{:uid\}", "", text))
    return [match[1] for statement in statements if (match := re.match(r"\s*(?:@!?\w+ )?([a-z]\w*\.[\w.:]+)", statement))]


@pytest.mark.parametrize(
    ("name", "arch"), [(name, arch) for name, value in NAMED.items() for arch in archs_of(value.ptx)], ids=lambda value: value
)
def test_named_instructions_assemble(name, arch):
    ptx = to_ptx(calling_kernel(NAMED[name]), arch)
    wanted = mnemonics(NAMED[name].ptx.text)
    assert wanted
    assert all(mnemonic in ptx for mnemonic in wanted)
    assert link(to_ltoir(calling_kernel(NAMED[name]), arch), arch)[0][:4] == b"\x7fELF"


@pytest.mark.parametrize("intrinsic", GENERATED, ids=lambda intrinsic: intrinsic.ptx.name)
def test_generated_instructions_assemble(intrinsic):
    made = compile_source(calling_kernel(intrinsic), "sm_90a")
    assert made.spill_bytes == 0
    assert not made.warnings


@pytest.mark.parametrize("name", NAMED)
def test_each_cites_its_section(name):
    assert re.search(r"PTX ISA (9\.7|10)\.\d+[.\d]*, [\w%.]+", NAMED[name].__doc__), NAMED[name].__doc__


BEFORE = {"sm_89": "sm_80", "sm_90": "sm_89", "sm_90a": "sm_89", "sm_100": "sm_90a"}


@pytest.mark.parametrize("name", [name for name, value in NAMED.items() if value.ptx.needs in BEFORE])
def test_each_is_missing_on_the_architecture_before(name):
    """`needs` is no more than the truth: the assembler refuses."""
    arch = BEFORE[NAMED[name].ptx.needs]
    intermediate = to_ltoir(calling_kernel(NAMED[name]), arch)
    with pytest.raises(Exception, match=r"(?i)nvjitlink"):
        link(intermediate, arch)


def ptx_of(function, *signature, arch="sm_90a") -> str:
    return to_ptx(KernelSource(function, signature, 128, 0, (128, 1)), arch)


def machine_code(function, *signature) -> bytes:
    return link(to_ltoir(KernelSource(function, signature, 128, 0, (128, 1)), "sm_90a"), "sm_90a")[0]


@asm("add.u32 $out, $a, $b;", effect="none")
def add(a: U32, b: U32) -> U32:
    """A sum."""


@asm("{ .reg .pred p; AGAIN_${:uid}: setp.eq.u32 p, $a, 0; @p bra AGAIN_${:uid}; }")
def spin(a: U32) -> None:
    """A label."""


@asm("shl.b32 $out, $a, $count;", effect="none")
def shift(a: U32, count: Immediate) -> U32:
    """A constant."""


class TestMaker:
    def test_operands_are_numbered_results_first(self):
        text = "x {$out}, {$a}, $b, $a[1], {$a[0:2]}, $out[0];"
        made = Instruction("x", text, {"a": types.UniTuple(types.uint32, 3), "b": types.float32}, types.UniTuple(types.uint32, 2))
        from perfmodel.kernels.ptx.asm import _constraints, _fill_in

        assert _fill_in(made, {}) == "x {$0, $1}, {$2, $3, $4}, $5, $3, {$2, $3}, $0;"
        assert _constraints(made) == "=r,=r,r,r,r,f,~{memory}"

    @pytest.mark.parametrize("text", ["x $c;", "x $a[2];", "x $a[1:3];", "x $out;"])
    def test_an_operand_that_is_not_there(self, text):
        with pytest.raises(ValueError, match=r"no operand \$"):
            instruction(Instruction("x", text, {"a": types.UniTuple(types.uint32, 2)}))

    def test_what_is_updated_has_the_type_of_the_result(self):
        with pytest.raises(ValueError, match="c is updated in place"):
            instruction(Instruction("x", "", {"c": types.float32}, types.uint32, updates="c"))

    def test_the_result_has_a_name_of_its_own(self):
        with pytest.raises(ValueError, match="`out` is the result"):
            instruction(Instruction("x", "$out;", {"out": types.uint32}))

    def test_pure_code_that_nobody_uses_is_dropped(self):
        def kernel(x):
            add(x[0], 1)
            x[0] = add(x[1], 2)

        assert ptx_of(kernel, types.uint32[::1]).count("add.u32 %") == 1

    def test_equal_pure_code_is_merged(self):
        def kernel(x):
            a = x[1]
            x[0] = add(a, 2) * add(a, 2)

        assert ptx_of(kernel, types.uint32[::1]).count("add.u32 %") == 1

    def test_labels_are_unique(self):
        def kernel(x):
            spin(x[0])
            spin(x[0])

        assert len(set(re.findall(r"AGAIN_\d+:", ptx_of(kernel, types.uint32[::1])))) == 2
        assert machine_code(kernel, types.uint32[::1])

    def test_constants_stand_in_the_text(self):
        COUNT = 5

        def kernel(x):
            x[0] = shift(shift(x[0], 3), COUNT)

        assert re.findall(r"shl\.b32 %r\d+, %r\d+, (\d+);", ptx_of(kernel, types.uint32[::1])) == ["3", "5"]

    def test_a_constant_that_is_not_one(self):
        def kernel(x, n):
            x[0] = shift(x[0], n)

        with pytest.raises(TypingError, match="shift: count must be a constant integer"):
            ptx_of(kernel, types.uint32[::1], types.uint32)

    def test_a_float_is_not_cut_to_an_integer(self):
        def kernel(x, y):
            x[0] = add(x[0], y)

        with pytest.raises(TypingError, match="add: b must be uint32, got float32"):
            ptx_of(kernel, types.uint32[::1], types.float32)

    def test_a_tuple_of_the_wrong_length(self):
        def kernel(x):
            d = mma_bf16(zero4(), (x[0], x[1]), (x[0], x[1]))
            x[0] = d[0]

        with pytest.raises(TypingError, match="mma_bf16: a must be UniTuple"):
            ptx_of(kernel, types.uint32[::1])

    def test_the_wrong_number_of_arguments(self):
        def kernel(x):
            x[0] = add(x[0])

        with pytest.raises(TypingError, match=r"add takes 2 arguments \(a, b\), got 1"):
            ptx_of(kernel, types.uint32[::1])

    def test_python_integers_and_mixed_tuples_convert(self):
        def kernel(x, n):
            d = mma_bf16((0.0, n, 1, n), (n, 7, x[0], 2**31), (1, 2))
            x[0] = d[0]

        assert machine_code(kernel, types.uint32[::1], types.int64)

    def test_results_in_operands_do_not_overlap_where_asked(self):
        @asm("{ mov.b32 $out[0], 1; mov.b32 $out[1], $a; }", effect="none", early=True)
        def pair(a: U32) -> U32x2:
            """Writes before it reads."""

        def kernel(x):
            p = pair(x[0])
            x[0], x[1] = p

        one, two = re.search(r"mov\.b32 (%r\d+), 1; mov\.b32 %r\d+, (%r\d+);", ptx_of(kernel, types.uint32[::1])).groups()
        assert one != two

    def test_declared_names_and_docs_stay(self):
        assert add.__name__ == "add"
        assert add.__doc__ == "A sum."
        assert repr(add) == "<intrinsic add>"


zero4, zero64 = zeros(4), zeros(64)
multiply = wgmma(128)
DESCRIPTOR = descriptor_base()


class TestTogether:
    def test_accumulators_stay_in_their_registers(self):
        """mma's D is C: the same four registers, from zeros to the store, without a move."""

        def kernel(out, n):
            held = zero4()
            for i in range(n):
                words = load_shared_x4(i * 16)
                held = mma_bf16(held, words, (words[0], words[1]))
            store_global_f32(array_address(out), held[0] + held[1] + held[2] + held[3])

        ptx = ptx_of(kernel, types.float32[::1], types.int32, arch="sm_80")
        d, c = re.search(r"mma\.sync[^{]*\{(.*?)\}, \{.*?\}, \{.*?\}, \{(.*?)\};", ptx).groups()
        assert d == c

    def test_a_loop_of_wgmma_is_neither_serialised_nor_spilt(self):
        def kernel(out, n):
            from_shared = to_shared(array_address(out))
            held = zero64()
            for i in range(n):
                words = load_shared_x4(i * 16)
                more = load_shared_x4(i * 16 + 2048)
                held = multiply(held, words + more + words + more, DESCRIPTOR | np.uint64(from_shared >> 4))
                wgmma_wait(0)
            store_global_f32(array_address(out), held[0] + held[63])

        made = compile_source(KernelSource(kernel, (types.float32[::1], types.int32), 128, 0, (128, 1)), "sm_90a")
        assert not made.warnings
        assert made.spill_bytes == 0
        assert made.registers < 128

    def test_the_descriptor(self):
        """128-byte swizzle is 1 in bits 62 and 63, 1,024 bytes are 64 in bits 32 to 45, the unused leading offset is 1 in bits 16 to 29."""
        assert int(descriptor_base()) == 0x4000_0040_0001_0000
        assert int(descriptor_base(2048)) == 0x4000_0080_0001_0000

    @pytest.mark.parametrize("columns", [0, 4, 12, 264])
    def test_shapes_that_wgmma_lacks(self, columns):
        with pytest.raises(ValueError, match="8 to 256 columns in steps of 8"):
            wgmma(columns)

    def test_zeros_are_constants(self):
        def kernel(out):
            held = zero64()
            out[0] = held[0] + held[63]

        ptx = ptx_of(kernel, types.float32[::1])
        assert re.search(r"st\.global\.(f32|u32|b32) .*;", ptx)
        assert ".local" not in ptx


def test_types_of_declarations():
    @asm("x;")
    def everything(a: U32, b: U64, c: F32, d: F32x4, e: U32x4, f: Immediate) -> None:
        """x"""

    kinds = list(everything.ptx.parameters.values())
    assert kinds[:3] == [types.uint32, types.uint64, types.float32]
    assert [len(kind) for kind in kinds[3:5]] == [4, 4]
    assert kinds[5] is IMMEDIATE
    assert everything.ptx.result == types.void
