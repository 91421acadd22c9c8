"""Calls of rope and of reshape_and_cache: the fused call's arguments that each takes."""

from cases import Call, Case, build

ROPE = [
    "q", "k", "pos", "cos_sin", "is_neox", "offs", "rotary_dim", "rotary_dim_offset", "q_out", "k_out",
]  # fmt: skip
GIVEN = [  # where they are
    "q_scale", "mrope_section", "mrope_interleaved", "q_weight", "k_weight", "eps", "weight_plus_one",
]  # fmt: skip
WRITE = [
    "k", "v", "key_cache", "value_cache", "slot_mapping", "k_scale", "v_scale", "flash_layout", "apply_scale",
    "swa_slot_mapping", "kv_cache_dtype",
]  # fmt: skip


def rope_of(fused: Call, has_k: bool = True) -> Call:
    given = [name for name in GIVEN if name in fused.arguments]
    call = Call({name: fused.arguments[name] for name in ROPE + given}, "rope")
    if not has_k:
        call.arguments.update(k=None, k_out=None)
        call.arguments.pop("k_weight", None)
        if "q_weight" not in call.arguments:
            call.arguments.pop("weight_plus_one", None)
        if call.arguments.get("q_scale") is not None:  # no key heads to have one each
            call.arguments["q_scale"] = call.arguments["q_scale"].reshape(-1)[:1]
    return call


def write_of(fused: Call) -> Call:
    return Call({name: fused.arguments[name] for name in WRITE}, "reshape_and_cache")


def rope_call(case: Case, has_k: bool = True) -> Call:
    return rope_of(build(case), has_k)


def write_call(case: Case) -> Call:
    return write_of(build(case))


def run_halves(fused: Call) -> tuple:
    """rope, then reshape_and_cache: the results of the fused call."""
    q_out, k_out = rope_of(fused).run()
    write = write_of(fused)
    write.arguments["k"] = k_out
    write.run()
    return q_out, k_out, fused.arguments["key_cache"], fused.arguments["value_cache"]
