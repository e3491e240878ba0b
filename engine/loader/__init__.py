"""Finding a model's files and reading its weights: safetensors, GGUF, dummy."""
