"""Write tiny Llama models with random weights, for a real engine. Nothing is downloaded.

    python make_models.py DIRECTORY

Run by the interpreter of the engine's environment. The models have the same tokenizer and the same
shape and differ in their weights, so much that they continue a text differently from the first token
on. Beside them is what can go wrong with a checkpoint.
"""

import shutil
import sys
from pathlib import Path
from typing import Any

# These are installed beside the engine and not beside the tests: mypy does not see them.
import torch  # type: ignore[import-not-found]
from safetensors.torch import load_file, save_file  # type: ignore[import-not-found]
from tokenizers import (  # type: ignore[import-not-found]
    Tokenizer,
    decoders,
    models,
    pre_tokenizers,
    trainers,
)
from transformers import (  # type: ignore[import-not-found]
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

SEEDS = {"first": 1, "second": 2, "third": 3}

TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE: every text has tokens, and every token has bytes."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<s>", "</s>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(
        ["a helmsman steers by what he sees, not by what he was told"], trainer
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        chat_template=TEMPLATE,
    )


def model(seed: int, *, vocabulary: int) -> LlamaForCausalLM:
    """Two layers of 64. The weights are large, so that the choice of a token is never a close one."""
    torch.manual_seed(seed)
    made = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=2048,
            bos_token_id=0,
            eos_token_id=1,
            pad_token_id=2,
            initializer_range=0.5,
            tie_word_embeddings=False,
            dtype="float32",
        )
    )
    # They are all ones otherwise. On a CPU vLLM's checksum covers these and the embeddings alone.
    for name, parameter in made.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    return made


def variant(source: Path, name: str, change: Any) -> None:
    """A copy of a checkpoint whose tensors went through ``change``."""
    target = source.with_name(name)
    shutil.copytree(source, target)
    tensors = change(load_file(source / "model.safetensors"))
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})


def main(directory: Path) -> None:
    """Write all of them."""
    words = tokenizer()
    for name, seed in SEEDS.items():
        model(seed, vocabulary=len(words)).save_pretrained(directory / name)
        words.save_pretrained(directory / name)
    source = directory / "second"
    variant(source, "half", lambda all_: {k: v for k, v in all_.items() if ".layers.1." not in k})
    shutil.copytree(source, directory / "empty")
    (directory / "empty" / "model.safetensors").unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
