"""V0's workers: inputs rebuilt from full metadata every step, the model, the sampler. Twin: engine/v1/worker."""
