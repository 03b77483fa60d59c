"""The emulator of PTX: that it computes what the PTX ISA says, and punishes what a GPU would."""

import numpy as np
import pytest

from perfmodel.kernels.emulator import Machine
from perfmodel.kernels.emulator_operations import compute, repack, warp_wide
from perfmodel.kernels.emulator_program import EmulationError, Memory, parse
from perfmodel.kernels.rounding import round_bf16


def kernel(body, parameters=("u64",)):
    listed = ", ".join(f".param .{kind} p_{i}" for i, kind in enumerate(parameters))
    return f".visible .entry k({listed}) {{\n.reg .b32 %r<9>;\n{body}\nret;\n}}"


def run(body, *, grid=1, threads=32, shared=1024, words=32, lockstep=True):
    """What a kernel stores to its buffer of words, given its address as %rd1."""
    memory = Memory(1 << 16)
    out = memory.place(np.zeros(words, np.uint32))
    machine = Machine(kernel(f"ld.param.u64 %rd1, [p_0];\n{body}"), memory)
    machine.launch(grid, threads, shared, [out], lockstep=lockstep)
    return memory.read(out, (words,), np.uint32), machine


STORE = "mov.u32 %r8, %tid.x; mul.wide.u32 %rd2, %r8, 4; add.s64 %rd3, %rd1, %rd2; st.global.b32 [%rd3], %r1;"


class TestOperations:
    @pytest.mark.parametrize(
        ("opcode", "operands", "wanted"),
        [
            ("add.s32", [0xFFFFFFFF, 2], 1),
            ("sub.u32", [1, 2], 0xFFFFFFFF),
            ("mul.wide.u32", [0xFFFFFFFF, 0x10], 0xFFFFFFFF0),
            ("mad.wide.u32", [0x10000, 0x10000, 5], 0x100000005),
            ("mad.lo.u32", [0x10000, 0x10001, 5], 0x10005),
            ("div.u32", [7, 2], 3),
            ("shl.b32", [1, 32], 0),
            ("shr.u32", [0x80000000, 31], 1),
            ("shr.s32", [0x80000000, 40], 0xFFFFFFFF),
            ("min.s64", [-1, 1], 0xFFFFFFFFFFFFFFFF),
            ("cvt.u64.u32", [0xFFFFFFFF], 0xFFFFFFFF),
            ("cvt.s64.s32", [0xFFFFFFFF], 0xFFFFFFFFFFFFFFFF),
            ("cvt.u32.u64", [0x123456789], 0x23456789),
            ("lop3.b32", [0b1100, 0b1010, 0b0001, 0xEA], 0b1001),
            ("lop3.b32", [0b1100, 0b1010, 0b0110, 0xCA], 0b1010),
            ("prmt.b32", [0x33221100, 0x77665544, 0x5140], 0x55114400),
            ("prmt.b32", [0x33228100, 0x77665544, 0x0009], 0x000000FF),
            ("bfi.b64", [0b11, 0, 4, 2], 0b110000),
            ("selp.b32", [1, 2, True], 1),
            ("fma.rn.f32", [0x40000000, 0x40400000, 0x3F800000], 0x40E00000),
            ("fma.rn.bf16x2", [0x40403F80, 0x40003F80, 0x80008000], 0x40C03F80),
            ("mul.rn.bf16x2", [0x00400000, 0x7F003F80], 0x3F800000),
            ("cvt.rn.bf16x2.f32", [0x3F800000, 0xC0000000], 0x3F80C000),
            ("neg.f32", [0x3F800000], 0xBF800000),
        ],
    )  # fmt: skip
    def test_by_hand(self, opcode, operands, wanted):
        assert int(compute(opcode, operands)) == wanted

    @pytest.mark.parametrize(("relation", "wanted"), [("lt.s32", True), ("lt.u32", False), ("ne.s32", True), ("ge.u32", True)])
    def test_comparison(self, relation, wanted):
        assert bool(compute(f"setp.{relation}", [0xFFFFFFFF, 1])) is wanted

    def test_halves_of_a_register(self):
        assert [int(half) for half in repack([0x123456789ABCDEF0], 2)] == [0x9ABCDEF0, 0x12345678]
        assert [int(whole) for whole in repack([0x9ABCDEF0, 0x12345678], 1)] == [0x123456789ABCDEF0]

    def test_unknown_instruction(self):
        with pytest.raises(KeyError):
            compute("sin.approx.f32", [0])

    def test_mma(self):
        source = np.random.default_rng(0)
        a, b, c = (round_bf16(source.standard_normal(shape)) for shape in ((16, 16), (16, 8), (16, 8)))
        lane, bits = np.arange(32), lambda values: values.astype(np.float32).view(np.uint32)
        r, q = lane // 4, lane % 4

        def pair(low, high):
            return bits(low) >> np.uint32(16) | bits(high) & np.uint32(0xFFFF0000)

        left = [pair(a[r + 8 * h, 2 * q + 8 * k], a[r + 8 * h, 2 * q + 8 * k + 1]) for k in (0, 1) for h in (0, 1)]
        right = [pair(b[2 * q + 8 * k, r], b[2 * q + 8 * k + 1, r]) for k in (0, 1)]
        given = [bits(c[r + 8 * h, 2 * q + p]) for h in (0, 1) for p in (0, 1)]
        got = [part.view(np.float32) for part in warp_wide("mma.sync", [left, right, given])]
        for index, values in enumerate(got):
            assert np.allclose(values, (a @ b + c)[r + 8 * (index // 2), 2 * q + index % 2], rtol=1e-6, atol=1e-6)

    def test_transposed_matrix(self):
        matrix = np.arange(64, dtype=np.uint16).reshape(8, 8)
        words = matrix.reshape(32, 2).view(np.uint32)[:, 0]
        (got,) = warp_wide("movmatrix.sync", [[words]])
        assert np.array_equal(got.view(np.uint16).reshape(8, 8), matrix.T)

    def test_shuffle_up(self):
        got = warp_wide("shfl.sync.up.b32", [[np.arange(32, dtype=np.uint32)], [2], [0], [-1]])[0]
        assert got.tolist() == [0, 1, *range(30)]


class TestMachine:
    def test_parse(self):
        statements, labels, parameters = parse(
            kernel("$L_1:\n@!%p1 bra $L_1; // back\n{ .reg .b32 t; ld.shared.v2.b32 {%r1, t}, [%r2+8]; }")
        )
        assert [s.opcode for s in statements] == ["bra", "ld.shared.v2.b32", "ret"]
        assert statements[0].guard == "!%p1"
        assert statements[1].operands == ("{%r1, t}", "[%r2+8]")
        assert (labels, parameters) == ({"$L_1": 0}, ["p_0"])

    def test_no_kernel(self):
        with pytest.raises(EmulationError, match="no kernel"):
            parse(".func f() {}")

    def test_threads_go_different_ways(self):
        body = """mov.u32 %r1, %tid.x; mov.u32 %r2, 0;
        $L_1: setp.ge.u32 %p1, %r2, %r1; @%p1 bra $L_2; add.s32 %r2, %r2, 1; bra.uni $L_1;
        $L_2: add.s32 %r1, %r2, 100;"""
        assert run(body + STORE)[0].tolist() == list(range(100, 132))

    def test_guarded_instruction(self):
        body = "mov.u32 %r1, %tid.x; setp.lt.u32 %p1, %r1, 5; @!%p1 mov.u32 %r1, 7;"
        assert run(body + STORE)[0].tolist() == [0, 1, 2, 3, 4] + [7] * 27

    @pytest.mark.parametrize("lockstep", [True, False])
    def test_a_barrier_makes_writes_seen(self, lockstep):
        """Each thread writes its number and reads that of the thread 32 further."""
        base = "mov.u32 %r1, %tid.x; mov.u64 %rd5, _cudapy_smem_1; cvt.u32.u64 %r2, %rd5;"
        write = f"{base} mad.lo.s32 %r3, %r1, 4, %r2; st.shared.b32 [%r3], %r1;"
        read = "xor.b32 %r4, %r1, 32; mad.lo.s32 %r5, %r4, 4, %r2; ld.shared.b32 %r1, [%r5];"
        options = {"threads": 64, "words": 64, "lockstep": lockstep}
        wanted = (np.arange(64) ^ 32).tolist()
        assert run(f"{write} bar.sync 0; {read} {STORE}", **options)[0].tolist() == wanted
        assert lockstep or run(write + read + STORE, **options)[0].tolist() != wanted  # without it the race shows

    @pytest.mark.parametrize(("wait", "landed"), [("cp.async.wait_group 0;", True), ("cp.async.wait_group 1;", False), ("", False)])
    def test_copies_land_as_late_as_they_may(self, wait, landed):
        body = f"""mov.u64 %rd5, _cudapy_smem_1; cvt.u32.u64 %r2, %rd5;
        cp.async.cg.shared.global [%r2], [%rd1], 16, 8; cp.async.commit_group; {wait} ld.shared.b32 %r1, [%r2+12];"""
        late = "" if landed else "cp.async.wait_group 0;"  # no copy may be under way where the CTA ends
        got = run(body + STORE + late)[0]
        assert (got == 0).all() == landed  # bytes 8 to 15 are filled up with zeros
        assert landed or (got == 0xFFFFFFFF).all()
        if not landed:
            with pytest.raises(EmulationError, match="still under way"):
                run(body + STORE)

    @pytest.mark.parametrize(
        ("body", "words"),
        [
            ("ld.global.b32 %r1, [%rd1+128];", "outside every buffer"),
            ("ld.global.b32 %r1, [%rd1+-4];", "outside every buffer"),
            ("ld.global.v4.b32 {%r1, %r2, %r3, %r4}, [%rd1+8];", "no multiple of 16"),
            ("mov.u32 %r2, 0; ld.shared.b32 %r1, [%r2];", "shared address 0 is outside"),
            ("mov.u32 %r2, 1036; st.shared.b32 [%r2], %r2;", "shared address 1036"),
            ("mov.u32 %r1, %tid.x; setp.eq.u32 %p1, %r1, 3; @%p1 bra $L_1; bar.sync 0; $L_1: bar.sync 0;", "different barriers"),
            ("mov.u32 %r1, %tid.x; setp.eq.u32 %p1, %r1, 3; @%p1 shfl.sync.up.b32 %r2, %r1, 1, 0, -1;", "lane of the warp is missing"),
            ("add.s32 %r1, %r7, 1;", "%r7 has no value"),
            ("sin.approx.f32 %r1, %rd1;", "sin"),
        ],
    )
    def test_mistakes(self, body, words):
        with pytest.raises(EmulationError, match=words):
            run(body)

    def test_wrong_number_of_arguments(self):
        with pytest.raises(EmulationError, match="1 arguments, not 2"):
            Machine(kernel(""), Memory(1024)).launch(1, 32, 0, [0, 0])

    def test_full_memory(self):
        with pytest.raises(EmulationError, match="do not fit"):
            Memory(1024).room(2048)

    @pytest.mark.parametrize(("stride", "met"), [(4, 1), (8, 2), (128, 32)])
    def test_bank_conflicts(self, stride, met):
        body = f"mov.u32 %r1, %tid.x; mad.lo.s32 %r2, %r1, {stride}, 1040; st.shared.b32 [%r2], %r1;"
        assert run(body, shared=8192)[1].conflicts == {"st.shared.b32": met}

    def test_bank_conflicts_of_matrices(self):
        body = "mov.u32 %r1, %tid.x; mad.lo.s32 %r2, %r1, {}, 1040; ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{%r3, %r4, %r5, %r6}}, [%r2];"
        assert run(body.format(16))[1].conflicts == {"ldmatrix": 1}
        assert run(body.format(128), shared=8192)[1].conflicts == {"ldmatrix": 8}
