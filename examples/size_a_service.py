"""Size a service: DeepSeek-V3 for 20 requests a second, prompts of 4,000 tokens of which half are in the prefix cache, answers of 500.

Run it with `python examples/size_a_service.py`; it needs no GPU.
"""

from __future__ import annotations

import perfmodel
from perfmodel.planning.flags import launch

REQUEST = {"isl": 4000, "osl": 500, "prefix_cache": 0.5, "rate": 20.0, "ttft_ms": 2000.0, "tpot_ms": 40.0}


def main() -> None:
    """Print how many GPUs of each kind it takes, what that costs, and how to start the cheapest."""
    result = perfmodel.plan("deepseek-v3", ["h200", "b200"], **REQUEST, top=1)
    for plan in result.plans:
        print(
            f"{plan.gpus:4} x {plan.gpu:5} {plan.mode:14} TTFT {plan.ttft_ms:5,.0f} ms, TPOT {plan.tpot_ms:4.1f} ms, "
            f"{plan.cost_per_hour:,.0f} {result.currency} an hour, {plan.power_kW:.0f} kW, room for {plan.most_requests_per_s:.1f} a second"
        )
    cheapest = min((plan for plan in result.plans if plan.cost_per_hour is not None), key=lambda plan: plan.cost_per_hour or 0.0)
    print(launch(result, "sglang", cheapest))
    for effect in result.limits:
        print(f"without the limit {effect.limit}: {100 * effect.gain:+.0f} % tokens a GPU")


if __name__ == "__main__":
    main()
