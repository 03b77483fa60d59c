"""What if: which GPU serves gpt-oss-120b cheapest at 20 ms a token, and what would a B200 with more bandwidth or half the price bring?

Run it with `python examples/compare_gpus.py`; it needs no GPU.
"""

from __future__ import annotations

import perfmodel

LOAD = {"isl": 1024, "osl": 1024, "tpot_ms": 20.0, "ttft_ms": 1500.0, "gpus": 8}


def main() -> None:
    """Print the best plan of each GPU, then two what-ifs."""
    result = perfmodel.plan("gpt-oss-120b", ["a100-80gb", "h100", "h200", "b200"], **LOAD)
    for gpu in dict.fromkeys(plan.gpu for plan in result.plans):
        best = next(plan for plan in result.plans if plan.gpu == gpu)
        low, high = best.interval.tokens_per_s_per_gpu
        print(
            f"{gpu:10} {best.tokens_per_s_per_gpu:7,.0f} tokens/s/GPU ({low:,.0f} to {high:,.0f}), {best.cost_per_million_tokens:.3f} "
            f"{result.currency} a million, {best.watts_per_gpu:.0f} W, bound by {', '.join(best.binds)}"
        )
    now = perfmodel.plan("gpt-oss-120b", "b200", **LOAD).plans[0]
    faster = perfmodel.plan("gpt-oss-120b", "b200", changes="memory.bandwidth_GBps=12000", **LOAD).plans[0]
    print(f"a B200 with 12 TB/s: {faster.tokens_per_s_per_gpu / now.tokens_per_s_per_gpu:.2f} times the tokens; the plan itself says:")
    for help_ in now.helps:
        print(f"  {help_.change}: {100 * help_.gain:+.0f} %")


if __name__ == "__main__":
    main()
