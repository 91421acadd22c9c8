"""The shipped case files: valid, with figures that follow from the models' config.json, and they pass."""

import json
from pathlib import Path

import jsonschema
import pytest
from runner import CASE_FILES, SHAPES, regress

SCHEMA = json.loads((SHAPES / "case_file.schema.json").read_text())
MODELS = json.loads((SHAPES / "models.json").read_text())["cases"]


def test_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_shipped_files() -> None:
    names = {path.stem for path in CASE_FILES}
    assert names >= {"models", "decode", "prefill", "chunked_prefill", "edges", "rejects", "quick"}


@pytest.mark.parametrize("path", CASE_FILES, ids=lambda path: path.stem)
def test_follows_the_schema(path: Path) -> None:
    jsonschema.validate(json.loads(path.read_text()), SCHEMA, jsonschema.Draft202012Validator)


@pytest.mark.parametrize("path", CASE_FILES, ids=lambda path: path.stem)
def test_passes_on_the_cpu(path: Path, tmp_path: Path) -> None:
    """All cases but the large ones, which would take minutes on two cores."""
    document = json.loads(path.read_text())
    document["cases"] = [case for case in document["cases"] if "large" not in case.get("tags", [])]
    small = tmp_path / path.name
    small.write_text(json.dumps(document))
    result = regress("run", small, "--device", "cpu")
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr
    assert ", 0 failed, 0 skipped" in result.stdout


@pytest.mark.parametrize("path", CASE_FILES, ids=lambda path: path.stem)
def test_passes_on_cuda(path: Path, cuda: str) -> None:
    result = regress("run", path, "--device", "cuda")
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr
    assert ", 0 failed" in result.stdout


def test_rejects_all_expect_an_error() -> None:
    cases = json.loads((SHAPES / "rejects.json").read_text())["cases"]
    assert [case["id"] for case in cases if "expect" not in case] == []


# --- Models


def key_value_heads(config: dict, heads: int) -> int:
    if config.get("multi_query"):
        return 1
    return config.get("num_key_value_heads", config.get("num_kv_heads", heads))


def head_size(config: dict, heads: int) -> int:
    """As the model states it; divided out only where its config.json states none."""
    if "head_dim" in config:
        return config["head_dim"]
    return config.get("hidden_size", config.get("n_embd")) // heads


def rotated_dims(config: dict, head_dim: int) -> int:
    fraction = config.get("partial_rotary_factor", config.get("rotary_pct", 1))
    return config.get("rotary_dim", int(head_dim * fraction))


def shape_of(case: dict) -> dict:
    """The sizes that the case's model has, worked out from the fields of its config.json."""
    config, shards = case["model"]["config"], case["model"].get("tensor_parallel", 1)
    heads = config.get("num_attention_heads", config.get("n_head"))
    kv_heads = max(1, key_value_heads(config, heads) // shards)
    if "kv_lora_rank" in config:
        rope, value = config["qk_rope_head_dim"], config["v_head_dim"]
        head_dim = rope + config["qk_nope_head_dim"]
        if "/latent" in case["id"]:  # one key of the rotated dims and the latent vector as value
            kv_heads, head_dim, value = 1, rope, config["kv_lora_rank"]
        sizes = {"head_dim": head_dim, "v_head_dim": value, "rotary_dim": rope}
        sizes["rotary_dim_offset"] = head_dim - rope
    else:
        head_dim = head_size(config, heads)
        sizes = {"head_dim": head_dim, "v_head_dim": head_dim, "rotary_dim": rotated_dims(config, head_dim)}
        sizes["rotary_dim_offset"] = 0
    return {"q_heads": heads // shards, "kv_heads": kv_heads, **sizes}


def shape_in(case: dict) -> dict:
    head_dim = case["head_dim"]
    return {
        "q_heads": case["q_heads"],
        "kv_heads": case["kv_heads"],
        "head_dim": head_dim,
        "v_head_dim": case.get("v_head_dim", head_dim),
        "rotary_dim": case.get("rotary_dim", head_dim),
        "rotary_dim_offset": case.get("rotary_dim_offset", 0),
    }


def rope_of(case: dict) -> tuple[float, dict]:
    config = case["model"]["config"]
    is_local = "rope_local_base_freq" in config and "/window" in case["id"]
    if is_local:
        return config["rope_local_base_freq"], {}
    scaling = dict(config.get("rope_scaling") or {})
    if "type" in scaling:  # the older key
        scaling["rope_type"] = scaling.pop("type")
    if scaling.get("mscale") is not None and scaling.pop("mscale") == scaling.pop("mscale_all_dim"):
        scaling["attention_factor"] = 1  # the quotient of two equal factors
    return config.get("rope_theta", config.get("rotary_emb_base", 10000)), scaling


@pytest.mark.parametrize("case", MODELS, ids=lambda case: case["id"])
def test_model_has_the_sizes_of_its_config(case: dict) -> None:
    config = case["model"]["config"]
    assert shape_in(case) == shape_of(case)
    base, scaling = rope_of(case)
    assert case["table"].get("base", 10000) == base
    assert case["table"].get("scaling", {}) == scaling
    limit = config.get("max_position_embeddings", config.get("n_positions", 8192))
    assert case["table"]["rows"] == min(limit, 8192)
    window = case.get("slots", {}).get("swa", {}).get("window")
    assert window == (config["sliding_window"] if "/window" in case["id"] else None)


def test_there_are_many_models_and_all_shards_of_large_ones() -> None:
    shards: dict[str, set[int]] = {}
    for case in MODELS:
        shards.setdefault(case["model"]["name"], set()).add(case["model"].get("tensor_parallel", 1))
    assert len(shards) >= 20
    large = ["Meta-Llama-3-70B", "Llama-3.1-405B", "Qwen2.5-72B", "Qwen3-235B-A22B", "Mixtral-8x22B"]
    for name in [*large, "DeepSeek-V3", "GLM-4.5"]:
        assert any(shards[full] == {1, 2, 4, 8} for full in shards if name in full), name
