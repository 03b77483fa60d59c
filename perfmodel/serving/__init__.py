"""From a whole model to a service: work of a step, its time on GPUs, memory, steady state of a load, simulation, plans."""
