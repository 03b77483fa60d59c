"""The loader of measured collectives, on small files of the same layout."""

import pytest

from perfmodel.validation.silicon import collectives, parts
from perfmodel.validation.silicon.validate import validate_silicon

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def write(folder, framework, version, name, form, rows):
    path = folder / "h100_sxm" / "comm" / framework / version / f"{name}.parquet"
    path.parent.mkdir(parents=True)
    columns = ("op_name", "kernel_source", form, "num_gpus", "message_size", "latency")
    pq.write_table(pa.table({column: [row[i] for row in rows] for i, column in enumerate(columns)}), path)


@pytest.fixture
def data(tmp_path, monkeypatch):
    """Four rows of NCCL, three of frameworks."""
    nccl = [
        ("all_reduce", "NCCL", "half", 8, 1024, 0.016),
        ("all_gather", "NCCL", "int8", 4, 2048, 0.0075),
        ("reduce_scatter", "NCCL", "half", 2, 2**28, 1.08),
        ("alltoall", "NCCL", "half", 8, 2**28, 1e-3),
    ]
    write(tmp_path, "nccl", "2.27.3", "nccl_perf", "nccl_dtype", nccl)
    write(
        tmp_path,
        "vllm",
        "0.24.0",
        "custom_allreduce_perf",
        "allreduce_dtype",
        [("all_reduce", f"vLLM_custom_{how}", "bfloat16", 8, 128, ms) for how, ms in (("graph", 0.0046), ("eager", 0.022))],
    )
    write(tmp_path, "sglang", "0.5.9", "custom_allreduce_perf", "allreduce_dtype", [("all_reduce", "TRTLLM", "bfloat16", 2, 128, 0.003)])
    monkeypatch.setattr(parts, "data_folder", lambda: tmp_path)
    return tmp_path


def test_sizes_are_bytes_of_the_buffer_and_kernels_are_told_by_the_collective(data):
    rows = collectives.read_collectives()
    label = {name: [column[i] for i in range(len(rows))] for name, column in rows.labels.items()}
    assert label["kernel"] == [
        *("nccl-all-reduce", "nccl-all-gather", "nccl-reduce-scatter", "nccl-all-to-all"),
        *("trtllm-all-reduce", "vllm-all-reduce", "vllm-all-reduce"),
    ]
    assert label["format"] == ["fp16", "int8", "fp16", "fp16", "bf16", "bf16", "bf16"]
    assert rows.sizes["bytes"].tolist() == [2048, 2048, 2**29, 2**29, 256, 256, 256]
    assert rows.sizes["ranks"].tolist() == [8, 4, 2, 8, 2, 8, 8]
    assert rows.sizes["eager"].tolist() == [0, 0, 0, 0, 0, 0, 1]
    assert rows.latency[0] == pytest.approx(16e-6)
    assert label["source"][0] == "nccl 2.27.3 NCCL all_reduce"


def test_releases_are_told_apart_where_their_kernels_differ(data):
    def kernel(version):
        write(data, "sglang", version, "custom_allreduce_perf", "allreduce_dtype", [row])
        rows = collectives.read_collectives()
        return next(rows.labels["kernel"][i] for i in range(len(rows)) if rows.labels["source"][i].startswith(f"sglang {version} "))

    row = ("all_reduce", "SGLang_CustomAllReduce_graph", "bfloat16", 2, 128, 0.003)
    assert [kernel(version) for version in ("0.5.10", "0.5.12", "0.5.14")] == [
        *("sglang-all-reduce-0.5.10", "sglang-all-reduce-0.5.12", "sglang-all-reduce")
    ]


def test_rows_are_scored_and_one_that_no_link_can_carry_is_not(data):
    held = validate_silicon("collectives").held
    assert [held.flags[i] for i in range(7)] == ["", "", "", "below-floor", "", "", ""]
    error = abs(held.predicted / held.measured - 1)
    assert error[[0, 1, 2, 4, 5, 6]].max() < 0.35
