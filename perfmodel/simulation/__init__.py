"""A serving engine, request by request: arrivals, queues, prompts between decode steps, caches that fill memory; percentiles of what clients see."""
