"""build_cos_sin beside transformers: its modules for real configs, its functions for each type."""

import inspect
import math

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

import kvrope
from rotary_modules import config_of, cos_sin_of_module, family_of, layer_type_of, model_cases

MODELS = model_cases()
ROWS = 3000  # of the tables of made-up configs

YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 512}
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}  # fmt: skip
LONGROPE = {
    "rope_type": "longrope", "original_max_position_embeddings": 1024, "factor": 4.0,
    "short_factor": [1 + i / 64 for i in range(32)], "long_factor": [1 + i / 7 for i in range(32)],
}  # fmt: skip
DYNAMIC = {"rope_type": "dynamic", "factor": 2.5, "original_max_position_embeddings": 1024}
PROPORTIONAL = {"rope_type": "proportional", "partial_rotary_factor": 0.3, "factor": 2.0}
SCALINGS = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 2.5},
    "dynamic": DYNAMIC,
    "dynamic-within-limit": DYNAMIC | {"original_max_position_embeddings": 2 * ROWS},
    "yarn": YARN,
    "yarn-not-truncated": YARN | {"truncate": False},
    "yarn-betas": YARN | {"beta_fast": 20, "beta_slow": 2.5},
    "yarn-attention-factor": YARN | {"attention_factor": 1.25},
    "yarn-mscale": YARN | {"mscale": 1.3, "mscale_all_dim": 0.7},
    "yarn-mscale-alone": YARN | {"mscale": 1.3},
    "yarn-mscale-zero": YARN | {"mscale": 1.3, "mscale_all_dim": 0},
    "yarn-factor-below-one": YARN | {"factor": 0.5},
    "yarn-narrow-ramp": YARN | {"original_max_position_embeddings": 6},
    "llama3": LLAMA3,
    "llama3-nothing-between": LLAMA3 | {"high_freq_factor": 1.0},
    "longrope-long": LONGROPE,
    "longrope-short": LONGROPE | {"original_max_position_embeddings": ROWS},
    "longrope-attention-factor": LONGROPE | {"attention_factor": 1.19},
    "longrope-factor-below-one": LONGROPE | {"factor": 0.5},
    "proportional": PROPORTIONAL,
    "proportional-whole": {"rope_type": "proportional"},
}


def config(scaling: dict, theta: float = 10000.0, head_size: int = 64, limit: int = 0) -> LlamaConfig:
    limit = limit or int(scaling.get("original_max_position_embeddings", 4096))
    return LlamaConfig(
        hidden_size=head_size * 4, num_attention_heads=4, head_dim=head_size, max_position_embeddings=limit,
        rope_parameters=dict(scaling) | {"rope_theta": theta},
    )  # fmt: skip


def test_signature() -> None:
    parameters = inspect.signature(kvrope.build_cos_sin).parameters.values()
    assert [p.name for p in parameters if p.kind == p.POSITIONAL_OR_KEYWORD] == [
        "rotary_dim", "max_position", "base", "scaling"
    ]  # fmt: skip
    assert {p.name: p.default for p in parameters if p.default is not p.empty} == dict(
        base=10000.0, scaling=None, full_width=False, is_neox=True, dtype=torch.float32, device=None
    )
    documentation = inspect.getdoc(kvrope.build_cos_sin)
    assert all(p.name in documentation and p.annotation is not p.empty for p in parameters)


def table_of(inv_freq: torch.Tensor, attention_factor: float, rows: int = ROWS) -> torch.Tensor:
    """What the modules' forward makes of frequencies, one column a pair."""
    angles = torch.arange(rows).float().unsqueeze(1) * inv_freq
    return torch.cat((angles.cos() * attention_factor, angles.sin() * attention_factor), dim=1)


@pytest.mark.parametrize("name", MODELS)
def test_models(name: str) -> None:
    """Bit for bit the model's own module; Llama-4's complex numbers (torch.polar) within one ulp."""
    case = MODELS[name]
    rows, rotary_dim = case["table"]["rows"], case.get("rotary_dim", case["head_dim"])
    theirs = cos_sin_of_module(case, rows)
    ours = kvrope.build_cos_sin(
        rotary_dim, rows, case["table"].get("base", 10000.0), case["table"].get("scaling")
    )
    assert ours.shape == theirs.shape == (rows, rotary_dim)
    if family_of(case) == "llama4":
        assert (ours.view(torch.int32) - theirs.view(torch.int32)).abs().max() <= 1
    else:
        assert torch.equal(ours, theirs)
    if family_of(case) == "gptj":  # it has no such dict
        return
    config = config_of(case)
    parameters = dict(config.rope_parameters)
    if (layer_type := layer_type_of(case)) is not None:
        parameters = parameters[layer_type]
    if parameters["rope_type"] == "longrope":  # which stands beside rope_parameters
        parameters["max_position_embeddings"] = config.max_position_embeddings
    assert torch.equal(ours, kvrope.build_cos_sin(rotary_dim, rows, scaling=parameters))


def test_layer_types_differ() -> None:
    """The comparison above can fail: Gemma-3's two kinds of layers have different tables."""
    tables = [cos_sin_of_module(MODELS[f"google/gemma-3-27b-it{kind}"], 100) for kind in ("", "/window")]
    assert (tables[0] - tables[1]).abs().max() > 0.5


@pytest.mark.parametrize("name", SCALINGS)
@pytest.mark.parametrize("theta", [10000.0, 1000000.0])
def test_scalings(name: str, theta: float) -> None:
    """Bit for bit transformers' function of the type; where it takes a length, that is the table's."""
    scaling = SCALINGS[name]
    if scaling["rope_type"] == "default":
        theirs = LlamaRotaryEmbedding.compute_default_rope_parameters(config(scaling, theta))
    else:
        theirs = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](config(scaling, theta), None, seq_len=ROWS)
    ours = kvrope.build_cos_sin(64, ROWS, theta, scaling)
    assert torch.equal(ours, table_of(*theirs))
    assert torch.equal(ours, kvrope.build_cos_sin(64, ROWS, 77.0, scaling | {"rope_theta": theta}))
    legacy = {("type" if key == "rope_type" else key): value for key, value in scaling.items()}
    assert torch.equal(ours, kvrope.build_cos_sin(64, ROWS, theta, legacy))
    nothing = dict.fromkeys(("attention_factor", "mscale", "truncate", "long_factor"))
    assert torch.equal(ours, kvrope.build_cos_sin(64, ROWS, theta, nothing | scaling))


@pytest.mark.parametrize("name", ["linear", "yarn", "llama3", "longrope-long", "longrope-short", "dynamic"])
def test_scalings_in_a_module(name: str) -> None:
    """The module as a model calls it. When it grows, dynamic works its base out in fp32 there."""
    module = LlamaRotaryEmbedding(config(SCALINGS[name]))
    cosines, sines = (x[0, :, :32] for x in module(torch.zeros(1), torch.arange(ROWS).unsqueeze(0)))
    ours = kvrope.build_cos_sin(64, ROWS, scaling=SCALINGS[name])
    theirs = torch.cat((cosines, sines), dim=1)
    if name == "dynamic":
        torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-7 * ROWS)
    else:
        assert torch.equal(ours, theirs)


def test_longrope_without_a_factor() -> None:
    """The ratio of the lengths, as transformers takes it for Phi-3."""
    given = LONGROPE | {"factor": None, "max_position_embeddings": 8192}
    theirs = ROPE_INIT_FUNCTIONS["longrope"](config(given, limit=8192), None, seq_len=ROWS)
    assert theirs[1] == math.sqrt(1 + math.log(8) / math.log(1024))
    assert torch.equal(kvrope.build_cos_sin(64, ROWS, scaling=given), table_of(*theirs))


@pytest.mark.parametrize("head_size, factor", [(128, 0.25), (96, 0.75), (80, 0.4)])
def test_partial_rotary(head_size: int, factor: float) -> None:
    """The rotated part has frequencies of its own size."""
    scaling = LLAMA3 | {"partial_rotary_factor": factor}
    theirs = ROPE_INIT_FUNCTIONS["llama3"](config(scaling, head_size=head_size))
    ours = kvrope.build_cos_sin(int(head_size * factor), ROWS, scaling=scaling)
    assert torch.equal(ours, table_of(*theirs))


def test_static_ntk_is_a_changed_base() -> None:
    base = 10000.0 * 4 ** (64 / 62)
    theirs = LlamaRotaryEmbedding.compute_default_rope_parameters(config({"rope_type": "default"}, base))
    assert torch.equal(kvrope.build_cos_sin(64, ROWS, base), table_of(*theirs))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("is_neox", [True, False], ids=["neox", "gptj"])
def test_full_width(is_neox: bool, dtype: torch.dtype) -> None:
    half = kvrope.build_cos_sin(8, 50, scaling=YARN)
    full = kvrope.build_cos_sin(8, 50, scaling=YARN, full_width=True, is_neox=is_neox, dtype=dtype)
    pairs = [0, 1, 2, 3, 0, 1, 2, 3] if is_neox else [0, 0, 1, 1, 2, 2, 3, 3]
    assert full.dtype == dtype
    assert torch.equal(full, torch.cat((half[:, pairs], half[:, [4 + i for i in pairs]]), dim=1).to(dtype))


def test_devices(device: str) -> None:
    """The same bits everywhere; torch's default device where none is said."""
    on_cpu = kvrope.build_cos_sin(64, 500, scaling=LLAMA3, dtype=torch.bfloat16, device="cpu")
    there = kvrope.build_cos_sin(64, 500, scaling=LLAMA3, dtype=torch.bfloat16, device=device)
    assert there.device.type == device and torch.equal(there.cpu(), on_cpu)
    with torch.device(device):
        assert kvrope.build_cos_sin(8, 3).device.type == device
    assert kvrope.build_cos_sin(8, 3).device.type == torch.get_default_device().type


@pytest.mark.parametrize("is_neox", [True, False], ids=["neox", "gptj"])
def test_half_and_full_width_rotate_alike(device: str, is_neox: bool) -> None:
    """The operation reads both, to the bit."""
    q, cache = torch.randn(5, 2, 16, device=device), torch.zeros(2, 4, 2, 16, device=device)
    pos, results = torch.tensor([0, 3, 99, 7, 1], device=device), []
    for full_width in (False, True):
        table = kvrope.build_cos_sin(12, 100, full_width=full_width, is_neox=is_neox, device=device)
        caches, slots = (cache.clone(), cache.clone()), torch.arange(5, device=device)
        arguments = (q, q, q, *caches, slots, pos, table, None, None, is_neox, True)
        results.append(kvrope.fused_qk_rope_reshape_and_cache(*arguments, rotary_dim=12))
    assert all(torch.equal(half, full) for half, full in zip(*results, strict=True))


BAD = {
    "odd": (dict(rotary_dim=7), ValueError, "rotary_dim: expected a positive even number, got 7"),
    "no-dims": (dict(rotary_dim=0), ValueError, "rotary_dim: expected a positive even number, got 0"),
    "half-a-dim": (dict(rotary_dim=8.0), TypeError, "rotary_dim: expected an int, got 8.0"),
    "no-rows": (dict(max_position=0), ValueError, "max_position: expected a positive number, got 0"),
    "base": (dict(base=-1.0), ValueError, "base: expected a positive number, got -1"),
    "base-nan": (dict(base=math.nan), ValueError, "base: expected a positive number, got nan"),
    "base-type": (dict(base="1e4"), TypeError, "base: expected a number, got '1e4'"),
    "dtype": (dict(dtype=torch.float64), TypeError, "dtype: expected float32 or .* bfloat16, got float64"),
    "dtype-type": (dict(dtype="half"), TypeError, "dtype: expected a torch.dtype, got 'half'"),
    "scaling-type": (dict(scaling="yarn"), TypeError, "scaling: expected a dict or None, got 'yarn'"),
}
BAD_SCALINGS = {
    "unknown": ({"rope_type": "su"}, ValueError, "rope_type: expected default, .*proportional, got 'su'"),
    "unknown-legacy": ({"type": "ntk"}, ValueError, "rope_type: expected default, .* got 'ntk'"),
    "type-type": ({"rope_type": 3}, TypeError, "rope_type: expected a str, got 3"),
    "theta": ({"rope_theta": 0}, ValueError, "scaling: rope_theta: expected a positive number, got 0"),
    "number": (YARN | {"factor": "8"}, TypeError, "scaling: factor: expected a number, got '8'"),
    "bool": (YARN | {"factor": True}, TypeError, "scaling: factor: expected a number, got True"),
    "infinite": (YARN | {"factor": math.inf}, ValueError, "factor of rope_type 'yarn': .* got inf"),
    "truncate": (YARN | {"truncate": "no"}, TypeError, "truncate: expected True or False, got 'no'"),
    "list": (LONGROPE | {"long_factor": 3.0}, TypeError, "long_factor: expected a list of numbers, got 3.0"),
    "element": (LONGROPE | {"long_factor": [1, "2"]}, TypeError, r"long_factor\[1\]: .* a number, got '2'"),
    "short": (LONGROPE | {"long_factor": [1.0] * 31}, ValueError, "long_factor .*32 numbers, .* got 31"),
    "long": (LONGROPE | {"short_factor": [1.0] * 33}, ValueError, "short_factor .*32 numbers, .* got 33"),
    "zero": (LONGROPE | {"short_factor": [0.0] * 32}, ValueError, "short_factor .*positive number, got 0"),
    "order": (LLAMA3 | {"low_freq_factor": 5}, ValueError, "high_freq_factor .*low_freq_factor 5, got 4"),
    "part": (PROPORTIONAL | {"partial_rotary_factor": 1.5}, ValueError, "expected at most 1, got 1.5"),
    "yarn-base": (YARN | {"rope_theta": 1}, ValueError, "rope_theta: .* more than 1 with rope_type 'yarn', got 1"),
    "layers": (
        {"full_attention": YARN, "sliding_attention": {"rope_type": "default"}},
        ValueError, "the parameters of one layer type, .* pass one of full_attention, sliding_attention",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments(name: str) -> None:
    changed, error, message = BAD[name]
    with pytest.raises(error, match=f"^build_cos_sin: {message}"):
        kvrope.build_cos_sin(**{"rotary_dim": 64, "max_position": 10, **changed})


@pytest.mark.parametrize("name", BAD_SCALINGS)
def test_bad_scalings(name: str) -> None:
    scaling, error, message = BAD_SCALINGS[name]
    with pytest.raises(error, match=f"^build_cos_sin: .*{message}"):
        kvrope.build_cos_sin(64, 10, scaling=scaling)


MISSING = [
    (scaling["rope_type"], key)
    for scaling in (SCALINGS["linear"], DYNAMIC, YARN, LLAMA3, LONGROPE)
    for key in scaling
    if key != "rope_type"
]


@pytest.mark.parametrize("rope_type, key", MISSING)
def test_missing_keys(rope_type: str, key: str) -> None:
    scaling = {name: value for name, value in SCALINGS.get(rope_type, LONGROPE).items() if name != key}
    with pytest.raises(ValueError, match=f"scaling: {key} of rope_type '{rope_type}': .*got n"):
        kvrope.build_cos_sin(64, 10, scaling=scaling)


def test_dynamic_needs_two_pairs() -> None:
    with pytest.raises(ValueError, match="rotary_dim: expected at least 4 with rope_type 'dynamic', got 2"):
        kvrope.build_cos_sin(2, 10, scaling=DYNAMIC)
