"""The kernels around the grouped GEMMs: run in the emulator of PTX, on a GPU where there is one, held against the references."""

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="needs the extra `kernels`")

from kernel_problems import ptx_of

from perfmodel.kernels import reference, routing, routing_reference, stream
from perfmodel.kernels.compile import check_one
from perfmodel.kernels.emulator import Machine
from perfmodel.kernels.emulator_program import Memory

BF16 = ml_dtypes.bfloat16


class RoutingMachine(Machine):
    """Knows besides what these kernels use: shuffles of every kind, match, popc, float division, CTAs in two dimensions.

    A warp is one group (`lockstep=False`), so `bar.warp.sync` has nothing to wait for.
    """

    row = 0
    """Index of the CTA in the second dimension."""

    def _execute(self, group, statement, here):
        if statement.opcode == "bar.warp.sync":
            group.counter[here] += 1
            return
        if statement.opcode.split(".")[0] in ("shfl", "match", "redux"):  # lanes wait here for the others
            arrived = group.counter == group.counter[here][0]
            group.waiting = here | group.waiting if not arrived.all() else np.zeros_like(here)
            if not arrived.all():
                return
            here = arrived
        super()._execute(group, statement, here)

    def _perform(self, kind, group, statement, act):
        opcode, operands = statement.opcode, statement.operands
        known = {"shfl": self._shuffle, "match": self._match, "redux": self._largest, "popc": self._count}.get(kind)
        if opcode == "setp.num.f32":
            value = np.broadcast_to(self._value(group, operands[1]), act.shape).astype(np.uint32).view(np.float32)
            self._assign(group, operands[0], [~np.isnan(value)], act)
        elif opcode == "div.rn.f32":
            a, b = (np.broadcast_to(self._value(group, part), act.shape).astype(np.uint32).view(np.float32) for part in operands[1:])
            with np.errstate(all="ignore"):
                self._assign(group, operands[0], [(a / b).view(np.uint32)], act)
        elif known:
            assert kind == "popc" or act.all(), "a lane of the warp is missing"
            self._assign(group, operands[0], [known(opcode, [self._value(group, part) for part in operands[1:]])], act)
        else:
            super()._perform(kind, group, statement, act)

    def _value(self, group, operand):
        return self.row if operand == "%ctaid.y" else super()._value(group, operand)

    @staticmethod
    def _shuffle(opcode, operands):
        lanes, step = np.broadcast_to(operands[0], 32), int(np.broadcast_to(operands[1], 32)[0])
        lane = np.arange(32)
        source = lane ^ step if ".bfly." in opcode else lane - step
        return np.where(source >= 0, lanes[source], lanes)

    @staticmethod
    def _largest(opcode, operands):
        return np.broadcast_to(np.broadcast_to(operands[0], 32).max(), 32)

    @staticmethod
    def _match(opcode, operands):
        lanes = np.broadcast_to(operands[0], 32)
        return ((lanes[:, None] == lanes[None, :]) << np.arange(32)).sum(axis=1).astype(np.uint32)

    @staticmethod
    def _count(opcode, operands):
        return np.bitwise_count(operands[0]).astype(np.uint32)


def is_output(one):
    return isinstance(one, tuple)


def emulate(variant, grid, inputs, numbers, rows=1):
    """Run a kernel; `inputs` are arrays, or (shape, dtype) of an output that starts as poison. Returns the outputs."""
    source, memory = variant.build(), Memory()
    arguments = [memory.room(int(np.prod(one[0])) * np.dtype(one[1]).itemsize) if is_output(one) else memory.place(one) for one in inputs]
    machine = RoutingMachine(ptx_of("sm_80", variant.build)[0], memory)
    for machine.row in range(rows):
        machine.launch(grid, source.threads, source.shared_bytes + 8192, [*arguments, *numbers], lockstep=False)
    return [memory.read(at, *one) for at, one in zip(arguments, inputs, strict=True) if is_output(one)]


def draw_logits(rng, tokens, experts):
    """With ties, negative and large values."""
    logits = rng.normal(size=(tokens, experts)).astype(np.float32) * 3
    logits[:, 1::7] = logits[:, :1]
    return logits


class TestRoute:
    @pytest.mark.parametrize(("tokens", "experts", "topk"), [(5, 8, 2), (3, 40, 16), (4, 512, 8), (1, 3, 3), (2, 1, 1)])
    def test_best_experts_and_their_weights(self, rng, tokens, experts, topk):
        logits = draw_logits(rng, tokens, experts)
        shape = ((tokens, topk), np.int32), ((tokens, topk), np.float32)
        chosen, weights = emulate(routing.ROUTE_RENORMALISED, -(-tokens // 4), [logits, *shape], [tokens, experts, topk])
        expected, factors = reference.route(logits, topk)
        assert (chosen == expected).all()
        np.testing.assert_allclose(weights, factors, rtol=2e-6)

    def test_weights_over_all_experts(self, rng):
        logits = draw_logits(rng, 3, 33)
        shape = ((3, 4), np.int32), ((3, 4), np.float32)
        chosen, weights = emulate(routing.ROUTE, 1, [logits, *shape], [3, 33, 4])
        expected, factors = routing_reference.route(logits, 4, renormalise=False)
        assert (chosen == expected).all()
        np.testing.assert_allclose(weights, factors, rtol=3e-6)


def test_softmax_by_hand():
    """Logits ln 1, ln 2, ln 5: weights 1/8, 2/8, 5/8."""
    experts, weights = routing_reference.route(np.log([[1.0, 2.0, 5.0]]), 2, renormalise=False)
    assert experts.tolist() == [[2, 1]]
    np.testing.assert_allclose(weights, [[5 / 8, 2 / 8]])
    np.testing.assert_allclose(routing_reference.route(np.log([[1.0, 2.0, 5.0]]), 2)[1], [[5 / 7, 2 / 7]])


class TestNonFinite:
    def test_no_logit_leads_outside(self):
        """NaN and infinities: the experts are different ones of those that are there."""
        logits = np.array([[np.nan, -np.inf, -np.inf, np.inf, np.nan, 0]], np.float32)
        shape = ((1, 6), np.int32), ((1, 6), np.float32)
        chosen, _ = emulate(routing.ROUTE, 1, [logits, *shape], [1, 6, 6])
        assert chosen.tolist() == [[3, 5, 1, 2, 0, 4]]


class TestSort:
    @pytest.mark.parametrize(
        ("tokens", "experts", "topk"), [(1, 4, 1), (3, 5, 2), (40, 8, 4), (129, 512, 8), (2000, 3, 2), (700, 128, 16), (64, 1, 1)]
    )
    def test_stable_counting_sort(self, rng, tokens, experts, topk):
        count = tokens * topk
        chosen = rng.integers(0, experts, (tokens, topk), dtype=np.int32)
        self.check(chosen, rng.random((tokens, topk), np.float32), experts, count)

    def test_all_on_one_expert(self, rng):
        self.check(np.full((5000, 1), 6, np.int32), rng.random((5000, 1), np.float32), 9, 5000)

    def test_experts_that_are_not_there_are_left_out(self, rng):
        chosen = rng.integers(-2, 9, (50, 4), dtype=np.int32)
        self.check(chosen, rng.random((50, 4), np.float32), 6, int(((chosen >= 0) & (chosen < 6)).sum()))

    def check(self, chosen, weights, experts, kept):
        count, topk = chosen.size, chosen.shape[1]
        outputs = [((experts + 1,), np.int32), *(((count,), kind) for kind in (np.int32, np.int32, np.float32, np.int32))]
        offsets, pairs, rows, factors, places = emulate(routing.SORT, 1, [chosen, weights, *outputs], [count, experts, topk])
        there = (chosen >= 0) & (chosen < experts)
        expected, starts = reference.permutation(np.where(there, chosen, experts), experts + 1)
        assert (offsets == starts[: experts + 1]).all()
        assert (pairs[:kept] == expected[:kept]).all()
        assert (rows[:kept] == expected[:kept] // topk).all()
        assert (factors[:kept] == weights.ravel()[expected[:kept]]).all()
        assert (places[expected[:kept]] == np.arange(kept)).all()


def test_gather(rng):
    x = rng.normal(size=(7, 2088)).astype(BF16)
    rows = rng.integers(0, 7, 5, dtype=np.int32)
    (out,) = emulate(routing.GATHER, 5, [x, rows, ((5, 2088), np.uint16)], [2088])
    assert (out.view(BF16) == x[rows]).all()


@pytest.mark.parametrize(("tokens", "hidden", "topk"), [(3, 8, 1), (2, 1048, 3)])
class TestCombine:
    """The sums are rounded once, from FP32 to bf16: half a unit in the last of 8 places, and a little for FP32."""

    def test_plain_sum(self, rng, tokens, hidden, topk):
        y = rng.normal(size=(tokens * topk, hidden)).astype(BF16)
        nothing = np.zeros(1, np.int32)
        (out,) = self.run(routing.COMBINE, [y, nothing, nothing, ((tokens, hidden), np.uint16)], hidden, topk)
        self.check(out, y.reshape(tokens, topk, hidden).astype(np.float64).sum(1))

    def test_weighted_sum_from_the_order_of_experts(self, rng, tokens, hidden, topk):
        y = rng.normal(size=(tokens * topk, hidden)).astype(BF16)
        places = rng.permutation(tokens * topk).astype(np.int32)
        weights = rng.random((tokens, topk)).astype(np.float32)
        (out,) = self.run(routing.COMBINE_WEIGHTED, [y, places, weights, ((tokens, hidden), np.uint16)], hidden, topk)
        self.check(out, routing_reference.combine(y[places], weights))

    def run(self, variant, inputs, hidden, topk):
        return emulate(variant, inputs[-1][0][0], inputs, [hidden, topk], rows=-(-hidden // (8 * routing.COMBINE_THREADS)))

    def check(self, out, expected):
        np.testing.assert_allclose(out.view(BF16).astype(np.float64), expected, rtol=2**-8 + 1e-6, atol=2e-7)


@pytest.mark.parametrize("variant", [*routing.VARIANTS, *stream.VARIANTS], ids=lambda variant: variant.name)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_kernels_compile_without_spills(variant, arch):
    row = check_one(variant, arch)
    assert row.ok, row.problem


@pytest.mark.parametrize("variant", stream.VARIANTS, ids=lambda variant: variant.name)
@pytest.mark.parametrize(("vectors", "ctas"), [(3, 1), (2048, 1), (5000, 2), (9000, 3)])
def test_reading_reads_everything(rng, variant, vectors, ctas):
    words = rng.integers(0, 2**32, 4 * vectors, dtype=np.uint32)
    (out,) = emulate(variant, ctas, [words, ((ctas * stream.THREADS // 32,), np.uint32)], [vectors])
    assert stream.checksum(out) == stream.checksum(words)
