"""The SGLang 0.5.23 dialect."""
