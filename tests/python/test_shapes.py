"""The shipped case files: valid, with figures that follow from the models' config.json, and they pass."""

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path

import jsonschema
import model_config
import pytest
from runner import CASE_FILES, SHAPES, regress

SCHEMA = json.loads((SHAPES / "case_file.schema.json").read_text())
MODELS = json.loads((SHAPES / "models.json").read_text())["cases"]


def test_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_shipped_files() -> None:
    names = {path.stem for path in CASE_FILES}
    assert names >= {"models", "decode", "prefill", "chunked_prefill", "edges", "rejects", "quick", "bench", "growth"}


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
    """All but the large ones of the growth plots: bench checks each, and the oracle would take minutes."""
    result = regress("run", path, "--device", "cuda", "--tag", "not (growth and large)")
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr
    assert ", 0 failed" in result.stdout


def test_rejects_all_expect_an_error() -> None:
    cases = json.loads((SHAPES / "rejects.json").read_text())["cases"]
    assert [case["id"] for case in cases if "expect" not in case] == []


# --- Models


def sizes_in(case: dict) -> dict:
    head_dim = case["head_dim"]
    return {
        "q_heads": case["q_heads"],
        "kv_heads": case["kv_heads"],
        "head_dim": head_dim,
        "v_head_dim": case.get("v_head_dim", head_dim),
        "rotary_dim": case.get("rotary_dim", head_dim),
        "rotary_dim_offset": case.get("rotary_dim_offset", 0),
    }


def options_in(case: dict, key: str, **defaults: object) -> "dict | None":
    return {**defaults, **case[key]} if key in case else None


def check_model(case: dict) -> None:
    assert sizes_in(case) == model_config.sizes(case)
    assert options_in(case, "norm", q=True, k=True, eps=1e-6, plus_one=False) == model_config.norm(case)
    assert options_in(case, "mrope", interleaved=False) == model_config.mrope(case)
    assert case["table"].get("base", 10000) == model_config.base(case)
    assert case["table"].get("scaling", {}) == model_config.scaling(case)
    assert case["table"]["rows"] == min(model_config.longest(case), 8192)
    window = model_config.window(case)
    assert case.get("slots", {}).get("swa", {}).get("window") == (window if "/window" in case["id"] else None)


def cases_by(key: Callable[[dict], str]) -> dict[str, list[dict]]:
    cases: dict[str, list[dict]] = {}
    for case in MODELS:
        cases.setdefault(key(case), []).append(case)
    return cases


MODELS_BY_NAME = cases_by(lambda case: case["model"]["name"])


@pytest.mark.parametrize("case", MODELS, ids=lambda case: case["id"])
def test_model_has_the_sizes_of_its_config(case: dict) -> None:
    check_model(case)


@pytest.mark.parametrize("name", MODELS_BY_NAME)
def test_no_field_of_a_config_can_be_left_out(name: str) -> None:
    """The test above reads them all: without any one of them it fails for some case of the model."""
    cases = copy.deepcopy(MODELS_BY_NAME[name])
    configs = [case["model"]["config"] for case in cases]
    assert all(config == configs[0] for config in configs)
    for left_out in list(configs[0]):
        values = [config.pop(left_out) for config in configs]
        assert any(fails(case) for case in cases), left_out
        for config, value in zip(configs, values):
            config[left_out] = value


def fails(case: dict) -> bool:
    try:
        check_model(case)
    except AssertionError:
        return True
    return False


@pytest.mark.parametrize(
    "left_out", ["rope_theta", "rope_scaling", "max_position_embeddings", "num_key_value_heads"]
)
def test_a_field_missing_from_config_and_case_alike_is_seen(left_out: str) -> None:
    """A case made of an incomplete config agrees with it, and fails still."""
    case = copy.deepcopy(MODELS_BY_NAME["meta-llama/Llama-3.1-8B"][0])
    del case["model"]["config"][left_out]
    case["table"] = {"rows": 8192}
    with pytest.raises(AssertionError, match=f"Llama-3.1-8B: its config states no .*{left_out}"):
        for read in (model_config.sizes, model_config.base, model_config.scaling, model_config.longest):
            read(case)


def test_models_with_a_window_have_cases_with_it() -> None:
    windowed = {name for name, cases in MODELS_BY_NAME.items() if model_config.window(cases[0])}
    shown = {case["model"]["name"] for case in MODELS if "/window" in case["id"]}
    assert len(windowed) >= 5 and shown == windowed


def test_there_are_many_models() -> None:
    assert len(MODELS_BY_NAME) >= 45


LARGE = 20  # billions of parameters: more than one GPU serves them


def is_large(case: dict) -> bool:
    return model_config.billions(case["model"]["name"]) >= LARGE


def test_sizes_of_models() -> None:
    sizes = {name: model_config.billions(name) for name in MODELS_BY_NAME}
    assert sizes["mistralai/Mixtral-8x22B-v0.1"] == 176 and sizes["Qwen/Qwen3-30B-A3B"] == 30
    assert sizes["EleutherAI/pythia-6.9b"] == 6.9 and sizes["Qwen/Qwen2.5-0.5B"] == 0.5
    assert sum(size >= LARGE for size in sizes.values()) >= 19


KINDS_OF_LAYERS = cases_by(lambda case: re.sub(r"/tp\d+$", "", case["id"]))


@pytest.mark.parametrize("kind", [kind for kind, cases in KINDS_OF_LAYERS.items() if is_large(cases[0])])
def test_large_models_have_all_shards(kind: str) -> None:
    assert [case["model"].get("tensor_parallel", 1) for case in KINDS_OF_LAYERS[kind]] == [1, 2, 4, 8]


@pytest.mark.parametrize("case", MODELS, ids=lambda case: case["id"])
def test_id_names_the_shard(case: dict) -> None:
    shards = case["model"].get("tensor_parallel", 1)
    suffix = re.search(r"/tp(\d+)$", case["id"])
    assert shards == (int(suffix[1]) if suffix else 1)
    heads = model_config.kv_heads(case)
    assert heads % shards == 0 or shards % heads == 0, "neither split nor copied"
