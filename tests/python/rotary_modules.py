"""transformers' own rotary module of a model in tests/shapes/models.json, from the config fields there."""

import importlib
import inspect
import json

import torch
from transformers import CONFIG_MAPPING

from runner import SHAPES

# What the model's name begins with -> its folder in transformers. The first that fits.
FAMILIES = {
    "meta-llama/Llama-4": "llama4",
    "meta-llama/": "llama",
    "mistralai/Mixtral": "mixtral",
    "mistralai/": "mistral",
    "Qwen/Qwen2.5": "qwen2",
    "Qwen/Qwen3-Next": "qwen3_next",
    "Qwen/Qwen3-30B-A3B": "qwen3_moe",
    "Qwen/Qwen3-235B-A22B": "qwen3_moe",
    "Qwen/Qwen3": "qwen3",
    "google/gemma-2": "gemma2",
    "google/gemma-3": "gemma3",
    "EleutherAI/gpt-j": "gptj",
    "EleutherAI/": "gpt_neox",
    "microsoft/phi-2": "phi",
    "microsoft/": "phi3",
    "openai/gpt-oss": "gpt_oss",
    "deepseek-ai/DeepSeek-V3": "deepseek_v3",
    "THUDM/glm-4": "glm",
    "zai-org/GLM-4.5": "glm4_moe",
    "tiiuae/falcon": "falcon",
    "stabilityai/stablelm": "stablelm",
    "allenai/OLMo-2": "olmo2",
}
TEXT_CONFIGS = {"llama4": "llama4_text", "gemma3": "gemma3_text"}


def model_cases() -> "dict[str, dict]":
    """One case for each model and kind of layer: the shards of a model share their table."""
    cases = {}
    for case in json.loads((SHAPES / "models.json").read_text())["cases"]:
        kind = "/window" if "/window" in case["id"] else ""
        cases.setdefault(case["model"]["name"] + kind, case)
    return cases


def family_of(case: dict) -> str:
    return next(family for start, family in FAMILIES.items() if case["model"]["name"].startswith(start))


def config_of(case: dict):
    family = family_of(case)
    fields = json.loads(json.dumps(case["model"]["config"]))  # configs change what they are given
    fields.setdefault("hidden_size", fields.get("num_attention_heads", 1) * case["head_dim"])
    return CONFIG_MAPPING[TEXT_CONFIGS.get(family, family)](**fields)


def layer_type_of(case: dict) -> "str | None":
    """The key of the layer's parameters in a model that has different ones for each type of layer."""
    if family_of(case) != "gemma3":
        return None
    return "sliding_attention" if "/window" in case["id"] else "full_attention"


def cos_sin_of_module(case: dict, rows: int) -> torch.Tensor:
    """(rows, R): the module's cosines and sines of positions 0 .. rows - 1, one column a pair."""
    family = family_of(case)
    modeling = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    if family == "gptj":
        sines, cosines = modeling.create_sinusoidal_positions(rows, case["rotary_dim"]).chunk(2, dim=1)
        return torch.cat((cosines, sines), dim=1)
    (rotary,) = (
        value for name, value in vars(modeling).items()
        if inspect.isclass(value) and name.endswith("RotaryEmbedding") and "Vision" not in name
    )  # fmt: skip
    arguments = {"position_ids": torch.arange(rows).unsqueeze(0)}
    if (layer_type := layer_type_of(case)) is not None:
        arguments["layer_type"] = layer_type
    result = rotary(config_of(case))(torch.zeros(1), **arguments)
    if isinstance(result, torch.Tensor):  # Llama-4: complex numbers
        return torch.cat((result.real[0], result.imag[0]), dim=1)
    cosines, sines = (part[0] for part in result)
    if family != "gpt_oss":  # each pair is there twice
        half = cosines.shape[1] // 2
        cosines, sines = cosines[:, :half], sines[:, :half]
    return torch.cat((cosines, sines), dim=1)
