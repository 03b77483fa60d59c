"""A serving engine, request by request: arrivals, queues, prompts between decode steps, memory; percentiles of what clients see."""
