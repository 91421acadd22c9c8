"""What the config.json of a model in tests/shapes/models.json says of its heads, its norms and its table.

Nothing is taken for granted: a field that its config does not state is an AssertionError, unless it is listed
here as one that the model's own config.json leaves to the model's class.
"""

import re

# Fields that these models' config.json files lack: the defaults of their classes in transformers.
LEFT_TO_THE_CLASS: dict[str, dict] = {
    "meta-llama/Llama-2-7b-hf": {"rope_theta": 10000},
    "meta-llama/Llama-2-70b-hf": {"rope_theta": 10000},
    "EleutherAI/gpt-j-6B": {"rope_theta": 10000},
    "microsoft/Phi-3-mini-4k-instruct": {"partial_rotary_factor": 1},
    "microsoft/phi-4": {"partial_rotary_factor": 1},
    "tiiuae/falcon-7b": {"rope_theta": 10000, "max_position_embeddings": 2048},
    "tiiuae/falcon-40b": {"rope_theta": 10000, "max_position_embeddings": 2048},
    "tiiuae/falcon-180B": {"rope_theta": 10000, "max_position_embeddings": 2048},
    "THUDM/glm-4-9b-chat": {"partial_rotary_factor": 0.5},
}

# Classes with a field for the part of a head that rotates; the others rotate it whole.
PARTIAL = {
    "gpt_neox": "rotary_pct", "phi": "partial_rotary_factor", "phi3": "partial_rotary_factor",
    "stablelm": "partial_rotary_factor", "glm4_moe": "partial_rotary_factor",
    "qwen3_next": "partial_rotary_factor", "chatglm": "partial_rotary_factor",
}  # fmt: skip
WITHOUT_GROUPS = {"gpt_neox", "gptj", "phi"}  # a KV head for each query head
WITH_WINDOWS = {
    "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "gemma2", "gemma3_text", "phi3", "gpt_oss"
}  # fmt: skip

# Classes that norm each head of q and k before the rotation, and those of them that multiply by 1 + weight.
WITH_QK_NORM = {
    "qwen3", "qwen3_moe", "qwen3_next", "qwen3_vl_text", "gemma3_text", "glm4_moe"
}  # fmt: skip
WITH_PLUS_ONE = {"qwen3_next", "gemma3_text"}
MROPE_FIELDS = {"mrope_section", "mrope_interleaved"}  # of rope_scaling

# Billions of parameters of the models whose names do not say them.
PARAMETERS = {
    "meta-llama/Llama-4-Scout-17B-16E": 109,
    "mistralai/Mistral-Nemo-Base-2407": 12,
    "microsoft/phi-2": 2.7,
    "microsoft/phi-4": 14,
    "microsoft/Phi-3-mini-4k-instruct": 3.8,
    "microsoft/Phi-4-mini-instruct": 3.8,
    "deepseek-ai/DeepSeek-V3": 671,
    "zai-org/GLM-4.5": 355,
}


def billions(name: str) -> float:
    """Parameters of a model: 8x22B, 30B-A3B, 6.9b."""
    if name in PARAMETERS:
        return PARAMETERS[name]
    size = re.search(r"(?:(\d+)x)?(\d+(?:\.\d+)?)b", name, re.IGNORECASE)
    assert size, f"{name}: its name says no size, and PARAMETERS does not either"
    return int(size[1] or 1) * float(size[2])


def field(case: dict, *names: str):
    """The one of these fields that the model's config states."""
    model = case["model"]
    fields = {**LEFT_TO_THE_CLASS.get(model["name"], {}), **model["config"]}
    stated = [name for name in names if name in fields]
    assert stated, f"{model['name']}: its config states no {' or '.join(names)}"
    return fields[stated[0]]


def is_window(case: dict) -> bool:
    return "/window" in case["id"]


def query_heads(case: dict) -> int:
    return field(case, "num_attention_heads", "n_head")


def kv_heads(case: dict) -> int:
    kind = field(case, "model_type")
    if kind in WITHOUT_GROUPS:
        return query_heads(case)
    if kind == "falcon" and not field(case, "new_decoder_architecture"):
        return 1 if field(case, "multi_query") else query_heads(case)
    return field(case, "num_key_value_heads", "num_kv_heads", "multi_query_group_num")


def head_size(case: dict) -> int:
    """As the model states it; divided out only where its config.json states none."""
    if {"head_dim", "kv_channels"} & set(case["model"]["config"]):
        return field(case, "head_dim", "kv_channels")
    return field(case, "hidden_size", "n_embd") // query_heads(case)


def rotary_dim(case: dict) -> int:
    kind = field(case, "model_type")
    if kind == "gptj":
        return field(case, "rotary_dim")
    return int(head_size(case) * (field(case, PARTIAL[kind]) if kind in PARTIAL else 1))


def sizes(case: dict) -> dict:
    """Of the case's calls: a shard's heads, each KV head copied where there are more shards than heads."""
    shards = case["model"].get("tensor_parallel", 1)
    kv = max(1, kv_heads(case) // shards)
    if field(case, "model_type") == "deepseek_v3":
        rope, value = field(case, "qk_rope_head_dim"), field(case, "v_head_dim")
        head_dim = rope + field(case, "qk_nope_head_dim")
        if "/latent" in case["id"]:  # one key of the rotated dims and the latent vector as value
            kv, head_dim, value = 1, rope, field(case, "kv_lora_rank")
        rotated = {"head_dim": head_dim, "v_head_dim": value, "rotary_dim": rope}
        rotated["rotary_dim_offset"] = head_dim - rope
    else:
        head_dim = head_size(case)
        rotated = {"head_dim": head_dim, "v_head_dim": head_dim, "rotary_dim": rotary_dim(case)}
        rotated["rotary_dim_offset"] = 0
    return {"q_heads": query_heads(case) // shards, "kv_heads": kv, **rotated}


def base(case: dict) -> float:
    kind = field(case, "model_type")
    if kind == "gemma3_text" and is_window(case):
        return field(case, "rope_local_base_freq")
    if kind == "chatglm":
        return 10000 * field(case, "rope_ratio")
    return field(case, "rope_theta", "rotary_emb_base")


def scaling(case: dict) -> dict:
    """The dict that build_cos_sin takes. A model without one states null."""
    stated = dict(field(case, "rope_scaling") or {})
    if field(case, "model_type") == "gemma3_text" and is_window(case):
        return {}
    if "mrope_section" in stated:  # beside it stands "default", or "mrope" for that
        stated = {name: value for name, value in stated.items() if name not in MROPE_FIELDS}
        assert stated in ({"type": "mrope"}, {"rope_type": "default"}), stated
        return {}
    if stated.get("rope_type", stated.get("type")) == "longrope":  # Phi-4-mini: the lengths stand outside
        for name in ("original_max_position_embeddings", "max_position_embeddings"):
            stated[name] = field(case, name)
    return stated


def norm(case: dict) -> "dict | None":
    kind = field(case, "model_type")
    if kind not in WITH_QK_NORM or (kind == "glm4_moe" and not field(case, "use_qk_norm")):
        return None
    return {"q": True, "k": True, "eps": field(case, "rms_norm_eps"), "plus_one": kind in WITH_PLUS_ONE}


def mrope(case: dict) -> "dict | None":
    stated = field(case, "rope_scaling") or {}
    if "mrope_section" not in stated:
        return None
    return {"section": stated["mrope_section"], "interleaved": stated.get("mrope_interleaved", False)}


def longest(case: dict) -> int:
    return field(case, "max_position_embeddings", "n_positions", "seq_length")


def window(case: dict) -> "int | None":
    """That ever hides a token: some models state one that is longer than their longest sequence."""
    if field(case, "model_type") not in WITH_WINDOWS:
        return None
    stated = field(case, "sliding_window")
    return stated if stated is not None and stated < longest(case) else None
