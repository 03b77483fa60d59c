"""Reports of Nsight Systems: times by kernel, gaps between kernels, names."""

from pathlib import Path

import numpy as np
import pytest

from perfmodel.diagnose.kinds import kind_of, short_name
from perfmodel.diagnose.nsys import Trace, parse_trace
from perfmodel.diagnose.result import diagnose
from perfmodel.diagnose.timeline import gap_finding, timeline

DATA = Path(__file__).parent / "data" / "diagnose"
SUM, TRACE = (DATA / f"h200_nsys_cuda_gpu_{page}.csv" for page in ("kern_sum", "trace"))


def test_summary():
    result = diagnose(SUM, gpu="h200")
    first = result["kernels"][0]
    assert (first["kind"], first["instances"], first["total_us"]) == ("dense_gemm", 16, pytest.approx(309.088))
    assert first["us"] == pytest.approx(19.28)
    assert sum(one["launches"] for one in result["kinds"]) == 192
    assert result["total_us"] == pytest.approx(sum(row["total_us"] for row in result["kernels"]))
    assert "shorter than its launch" in [one["cause"] for one in result["kernels"][-1]["findings"]]


def test_trace():
    result = diagnose(TRACE)
    line = result["timeline"]
    assert result["gpu"] == "h200"
    assert (line["count"], line["gaps"]) == (48, 47)
    assert line["busy_us"] + line["launch_gaps_us"] == pytest.approx(line["span_us"])
    assert line["busy_us"] == pytest.approx(result["total_us"])  # one stream: nothing overlaps
    (gap,) = line["findings"]
    assert gap["after_us"] == pytest.approx(line["busy_us"] + 47 * 1.3)


def test_overlap_counts_once_and_a_break_is_no_launch_gap():
    us = 1e-6
    line = timeline(Trace(["a"] * 4, [2] * 4, np.array([0, 5, 20, 5000]) * us, np.array([10, 10, 10, 10]) * us, None))
    assert line.busy == pytest.approx(35 * us)  # 0 to 15, 20 to 30, 5000 to 5010
    assert line.launch_gaps == pytest.approx(5 * us)
    assert line.breaks == pytest.approx(4970 * us)
    assert line.idle == pytest.approx(5 / 40)
    assert gap_finding(line).saves == pytest.approx(5 * us - 1.3 * us)  # the graph does not reach over the break
    assert gap_finding(timeline(Trace(["a", "b"], [2, 3], np.array([0.0, 100 * us]), np.array([95 * us, us]), None))) is None


def test_the_gpu_named_is_the_one_whose_timeline_is_shown(tmp_path):
    head = "Start (ns),Duration (ns),Device,Name\n"
    row = "{},1000,{},k\n"
    busy = "".join(row.format(10_000 * i, "NVIDIA L40S (1)") for i in range(2))
    (tmp_path / "a.csv").write_text(head + row.format(0, "NVIDIA H200 (0)") + busy)
    result = diagnose(tmp_path / "a.csv")
    assert (result["device"], result["timeline"]["device"], result["gpu"]) == ("NVIDIA L40S", "NVIDIA L40S", "l40s")
    assert result["notes"] == ["1 more device is in the trace; this is the one with the most work"]


def test_other_units_of_time():
    text = TRACE.read_text().replace("Start (ns),Duration (ns)", "Start (us),Duration (us)")
    assert parse_trace(text)[0].durations[0] == pytest.approx(7456e-6)


@pytest.mark.parametrize(
    ("name", "kind", "short"),
    [
        ("void at::native::<unnamed>::softmax_warp_forward<float, 7>(T2 *)", "softmax", "at::softmax_warp_forward"),
        (
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096>)",
            "collective",
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
        ),
        ("void vllm::moe::topkGatingSoftmax<4, 256>(float const*)", "routing", "vllm::moe::topkGatingSoftmax"),
        ("fused_moe_kernel", "grouped_gemm", "fused_moe_kernel"),
        ("wgmma_w4a8_kernel::kernel[abi:v1,cw51]", "grouped_gemm", "wgmma_w4a8_kernel::kernel"),
        ("void flash::flash_fwd_splitkv_kernel<Traits>(Params)", "attention", "flash::flash_fwd_splitkv_kernel"),
        ("void vllm::act_and_mul_kernel<bf16>(bf16*)", "activation", "vllm::act_and_mul_kernel"),
        ("void per_token_group_quant_8bit_kernel<bf16>(void*)", "quantise", "per_token_group_quant_8bit_kernel"),
        ("[CUDA memcpy Host-to-Device]", "copy", "[CUDA memcpy Host-to-Device]"),
        (
            "void cutlass::Kernel<cutlass::gemm::kernel::MoeFCGemm<cutlass::epilogue::threadblock::PredicatedTileIterator<T, "
            "cutlass::half_t, false, cutlass::layout::NoPermute, false>>>(T1::Params)",
            "grouped_gemm",
            "cutlass::Kernel",
        ),
        ("void moe::permute_rows<4>(int*)", "routing", "moe::permute_rows"),
        ("cutlass_mxfp8_grouped_mm", "grouped_gemm", "cutlass_mxfp8_grouped_mm"),
        ("mxfp8_experts_quant_kernel", "quantise", "mxfp8_experts_quant_kernel"),
        ("void flashinfer::norm::RMSNormKernel<8u, bf16>(bf16*)", "norm", "flashinfer::norm::RMSNormKernel"),
        ("void flashinfer::BatchDecodeWithPagedKVCacheKernel<1>(P)", "attention", "flashinfer::BatchDecodeWithPagedKVCacheKern…"),
        ("my_kernel", "other", "my_kernel"),
        ("my_\x1bkernel\x07", "other", "my_kernel"),  # nothing that a terminal obeys is passed on
    ],
)
def test_names(name, kind, short):
    assert kind_of(name) == kind
    assert short_name(name) == short
