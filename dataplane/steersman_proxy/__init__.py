"""The stateless data-plane proxy: one OpenAI and SGLang endpoint over many rollout engines."""
