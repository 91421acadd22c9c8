"""The Python signature: names, order, defaults; a docstring that speaks of every argument."""

import inspect

import kvrope

POSITIONAL = [
    "q", "k", "v", "key_cache", "value_cache", "slot_mapping", "pos", "cos_sin", "k_scale", "v_scale",
    "is_neox", "flash_layout", "apply_scale", "offs", "q_out", "k_out", "output_zeros", "zeros_out",
    "swa_slot_mapping",
]  # fmt: skip
DEFAULTS = dict(
    apply_scale=True, offs=None, q_out=None, k_out=None, output_zeros=True, zeros_out=None,
    swa_slot_mapping=None, rotary_dim=None, rotary_dim_offset=0, kv_cache_dtype="auto", q_scale=None,
    match_unfused=False, mrope_section=None, mrope_interleaved=False, q_weight=None, k_weight=None, eps=1e-6,
    weight_plus_one=False,
)  # fmt: skip

PARAMETERS = inspect.signature(kvrope.fused_qk_rope_reshape_and_cache).parameters


def test_names_and_order() -> None:
    positional = [name for name, p in PARAMETERS.items() if p.kind == p.POSITIONAL_OR_KEYWORD]
    keyword_only = [name for name, p in PARAMETERS.items() if p.kind == p.KEYWORD_ONLY]
    assert positional == POSITIONAL
    assert keyword_only == [name for name in DEFAULTS if name not in POSITIONAL]


def test_defaults() -> None:
    assert {name: p.default for name, p in PARAMETERS.items() if p.default is not p.empty} == DEFAULTS


def test_annotations_and_docstring() -> None:
    assert all(p.annotation is not p.empty for p in PARAMETERS.values())
    documentation = inspect.getdoc(kvrope.fused_qk_rope_reshape_and_cache)
    assert [name for name in PARAMETERS if name not in documentation] == []
    assert all(error in documentation for error in ("ValueError", "TypeError", "IndexError"))
