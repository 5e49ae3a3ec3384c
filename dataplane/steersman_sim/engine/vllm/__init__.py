"""The vLLM 0.32 dialect."""
