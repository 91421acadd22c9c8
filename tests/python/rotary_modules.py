"""transformers' own modules of a model in tests/shapes/models.json, from the config fields there: what rotates
heads, and what norms them before."""

import importlib
import inspect
import json

import torch
from transformers import CONFIG_MAPPING

from runner import SHAPES

# model_type -> its folder in transformers, where that has another name.
FOLDERS = {
    "llama4_text": "llama4", "gemma3_text": "gemma3", "chatglm": "glm", "qwen3_vl_text": "qwen3_vl"
}  # fmt: skip
VISION = {"qwen2_vl", "qwen2_5_vl"}  # whose configs have their language model's fields beside the others
CHATGLM_FIELDS = {
    "multi_query_group_num": "num_key_value_heads", "kv_channels": "head_dim",
    "seq_length": "max_position_embeddings",
}  # fmt: skip


def model_cases() -> "dict[str, dict]":
    """One case for each model and kind of layer: the shards of a model share their table."""
    cases = {}
    for case in json.loads((SHAPES / "models.json").read_text())["cases"]:
        kind = "/window" if "/window" in case["id"] else ""
        cases.setdefault(case["model"]["name"] + kind, case)
    return cases


def family_of(case: dict) -> str:
    kind = case["model"]["config"]["model_type"]
    return FOLDERS.get(kind, kind)


def config_of(case: dict):
    fields = json.loads(json.dumps(case["model"]["config"]))  # configs change what they are given
    kind = fields.pop("model_type")
    if kind == "chatglm":  # the model's own code; in transformers it is glm, with other names
        fields = {CHATGLM_FIELDS.get(name, name): value for name, value in fields.items()}
        fields["rope_theta"] = 10000.0 * fields.pop("rope_ratio")
        kind = "glm"
    if kind in VISION:
        kind += "_text"
    fields.setdefault("hidden_size", fields.get("num_attention_heads", 1) * case["head_dim"])
    return CONFIG_MAPPING[kind](**fields)


def layer_type_of(case: dict) -> "str | None":
    """The key of the layer's parameters in a model that has different ones for each type of layer."""
    if family_of(case) != "gemma3":
        return None
    return "sliding_attention" if "/window" in case["id"] else "full_attention"


def modeling_of(case: dict):
    family = family_of(case)
    return importlib.import_module(f"transformers.models.{family}.modeling_{family}")


def class_of(case: dict, ending: str) -> type:
    """The class of the language model whose name ends so."""
    (found,) = (
        value for name, value in vars(modeling_of(case)).items()
        if inspect.isclass(value) and name.endswith(ending) and "Vision" not in name
    )  # fmt: skip
    return found


def attention_of(case: dict) -> torch.nn.Module:
    """Its first attention layer, without memory."""
    with torch.device("meta"):
        return class_of(case, "Attention")(config_of(case), layer_idx=0)


def rotary_of(case: dict) -> torch.nn.Module:
    return class_of(case, "RotaryEmbedding")(config_of(case))


def cos_sin_of_module(case: dict, rows: int) -> torch.Tensor:
    """(rows, R): the module's cosines and sines of positions 0 .. rows - 1, one column a pair."""
    family = family_of(case)
    if family == "gptj":
        modeling = modeling_of(case)
        sines, cosines = modeling.create_sinusoidal_positions(rows, case["rotary_dim"]).chunk(2, dim=1)
        return torch.cat((cosines, sines), dim=1)
    positions = torch.arange(rows).unsqueeze(0)
    arguments = {"position_ids": positions.expand(3, 1, rows) if "mrope" in case else positions}
    if (layer_type := layer_type_of(case)) is not None:
        arguments["layer_type"] = layer_type
    result = rotary_of(case)(torch.zeros(1), **arguments)
    if isinstance(result, torch.Tensor):  # Llama-4: complex numbers
        return torch.cat((result.real[0], result.imag[0]), dim=1)
    cosines, sines = (part[0] for part in result)
    if family != "gpt_oss":  # each pair is there twice
        half = cosines.shape[1] // 2
        cosines, sines = cosines[:, :half], sines[:, :half]
    return torch.cat((cosines, sines), dim=1)
