"""Text and tokens: tokenizers, incremental detokenizing, stop strings, chat templates. Torch-free."""
