"""kvrope in transformers' continuous batching: the engine's own tokens, one call a layer, all or nothing."""

import copy
from contextlib import contextmanager

import pytest
import torch
import transformers
from transformers import CompileConfig
from transformers.generation.continuous_batching.cache import PagedAttentionCache

import kvrope.integrations.transformers as integration
from kvrope.integrations import _transformers_attention as layers
from kvrope.integrations import _transformers_table as tables
from small_models import CONFIGS, generate, prompts, small_model
from small_models import quick_engine  # noqa: F401 (every test uses it)

PROMPTS = prompts(64)
FAMILIES = [name for name in CONFIGS if name not in ("gemma", "llama-3-8b-layers")]
EAGER_ALONE = ("gpt-oss",)  # transformers has no other back end for it here
LAYERS = 2


@contextmanager
def enabled(model: torch.nn.Module):
    integration.enable(model)
    yield model
    integration.disable(model)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> "list[dict]":
    """The keyword and positional arguments of each call that layers make."""
    made, original = [], layers._rotate_and_cache

    def counted(*args, **kwargs):
        made.append(dict(args=args, **kwargs))
        return original(*args, **kwargs)

    monkeypatch.setattr(layers, "_rotate_and_cache", counted)
    return made


def back_end(name: str) -> str:
    return "eager" if name in EAGER_ALONE else "sdpa"


@pytest.mark.parametrize("name", FAMILIES)
def test_tokens_of_the_engine(device: str, name: str) -> None:
    """64 prompts of mixed lengths in fp32: chunks of prompts beside decodes, shared prefixes, windows."""
    model = small_model(name, back_end(name), device=device)
    expected = generate(model, PROMPTS)
    assert len({tuple(tokens) for tokens in expected}) > 30  # they are no model's that says one thing
    with enabled(model):
        assert generate(model, PROMPTS) == expected


@pytest.mark.parametrize("name", ["llama", "gemma3"])
@pytest.mark.parametrize("engine", [dict(num_blocks=24), dict(max_batch_tokens=16, block_size=4)])
def test_other_engines(device: str, name: str, engine: dict) -> None:
    """A cache too small for all requests at once; small blocks and chunks. The other back end too."""
    model = small_model(name, "eager", device=device)
    expected = generate(model, PROMPTS[:16], **engine)
    with enabled(model):
        assert generate(model, PROMPTS[:16], **engine) == expected


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("graphs", [False, True], ids=["no-graph", "graph"])
def test_matrix_on_cuda(cuda: str, name: str, attention: str, graphs: bool) -> None:
    """Padded steps and captured graphs are CUDA's alone."""
    if name in EAGER_ALONE and attention != "eager":
        pytest.skip(f"transformers has no {attention} for {name}")
    if graphs and name in ("llama-dynamic", "phi3-partial-longrope"):
        pytest.skip("transformers itself cannot capture frequencies that depend on the length")
    model = small_model(name, attention, device=cuda)
    engine = dict(use_cuda_graph=graphs, use_async_batching=False, num_blocks=256)
    expected = generate(model, PROMPTS, new_tokens=24, **engine)
    with enabled(model):
        assert generate(model, PROMPTS, new_tokens=24, **engine) == expected


def test_llama_3_8b_layers_on_cuda(cuda: str) -> None:
    """Two layers of its shape."""
    model = small_model("llama-3-8b-layers", device=cuda)
    expected = generate(model, PROMPTS, new_tokens=24)
    with enabled(model):
        assert generate(model, PROMPTS, new_tokens=24) == expected


@pytest.mark.parametrize("name", ["llama", "gemma3", "mistral-window"])
def test_compiled_on_cuda(cuda: str, name: str) -> None:
    """The whole model in one graph of torch.compile."""
    model = small_model(name, device=cuda)
    compiled = dict(varlen_compile_config=CompileConfig(fullgraph=True, mode="default", dynamic=True))
    expected = generate(model, PROMPTS[:8], **compiled)
    torch.compiler.reset()
    with enabled(model):
        assert generate(model, PROMPTS[:8], **compiled) == expected


def last_logits(model: torch.nn.Module) -> torch.Tensor:
    """(N, vocabulary) of all steps that read prompts, before any token depends on the arithmetic."""
    steps = []
    hook = model.register_forward_hook(lambda _, __, output: steps.append(output.logits[0].float().cpu()))
    generate(model, PROMPTS[:32], new_tokens=1)
    hook.remove()
    return torch.cat(steps)


def distance(first: torch.Tensor, second: torch.Tensor) -> float:
    return (first - second).pow(2).mean().sqrt().item()


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt-neox", "qwen3", "phi3"])
def test_bf16_logits(device: str, name: str) -> None:
    """As far from the engine's as its own back ends are from each other, and no farther from fp32 than it is.

    The distances are root mean squares of rounding errors: they scatter by a few per cent.
    """
    sdpa, eager = (small_model(name, attention, torch.bfloat16, device) for attention in ("sdpa", "eager"))
    exact = last_logits(copy.deepcopy(sdpa).float())
    unmodified, other = last_logits(sdpa), last_logits(eager)
    with enabled(sdpa):
        ours = last_logits(sdpa)
    assert not torch.equal(ours, unmodified)
    assert distance(ours, unmodified) <= 1.1 * distance(other, unmodified)
    assert distance(ours, exact) <= 1.1 * distance(unmodified, exact)


def test_one_call_a_layer(device: str, calls: "list[dict]", monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions and write indices go in as the engine has them; nothing else writes the cache or rotates."""
    model = small_model("llama", device=device)
    steps = []
    hook = model.register_forward_pre_hook(lambda _, __, kwargs: steps.append(kwargs), with_kwargs=True)
    with enabled(model):
        monkeypatch.setattr(PagedAttentionCache, "update", None)
        generate(model, PROMPTS[:8])
    hook.remove()
    assert len(steps) > 8 and len(calls) == LAYERS * len(steps)
    for i, call in enumerate(calls):
        step = steps[i // LAYERS]
        slots, positions = call["args"][5:7]
        assert slots is step["write_index"][0]
        assert positions.data_ptr() == step["position_ids"].data_ptr() and positions.dtype == torch.int32
        assert call["args"][3].data_ptr() == step["cache"].key_cache[i % LAYERS].data_ptr()
        assert call["args"][7].shape == (step["cache"].num_pages, 8)  # one table for all positions
        assert call["args"][7] is calls[0]["args"][7]


def test_rows_of_the_step(calls: "list[dict]") -> None:
    """Angles that depend on the longest request, and windows longer than the cache, come from the step."""
    for name in ("llama-dynamic", "phi3-partial-longrope", "mistral-window"):
        calls.clear()
        with enabled(small_model(name)) as model:
            generate(model, PROMPTS[:4])
        for call in calls:
            assert len(call["args"][7]) == len(call["args"][0])
            assert torch.equal(call["args"][6], torch.arange(len(call["args"][0])))
        assert calls[0]["args"][7] is calls[1]["args"][7] is not calls[2]["args"][7]  # made once a step


def test_windows_are_read_before_they_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison of tokens sees the other order."""
    model = small_model("mistral-window")
    expected = generate(model, PROMPTS[:16])
    attend = layers.FusedAttention._attend

    def write_first(self, attention, layer, query, key, value, mask, *, cache, **kwargs):
        group, index = cache.layer_index_to_group_indices[layer.layer_idx]
        slots = kwargs["write_index"][group]
        cache.key_cache[index][slots] = key[0].transpose(0, 1)
        return attend(self, attention, layer, query, key, value, mask, cache=cache, **kwargs)

    monkeypatch.setattr(layers.FusedAttention, "_attend", write_first)
    with enabled(model):
        assert generate(model, PROMPTS[:16]) != expected


def test_wrong_angles_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison of tokens can fail."""
    model = small_model("llama")
    expected = generate(model, PROMPTS[:8])
    of = tables.RotaryTables.of
    monkeypatch.setattr(tables.RotaryTables, "of", lambda *args: (of(*args)[0].roll(1, 0), of(*args)[1]))
    with enabled(model):
        assert generate(model, PROMPTS[:8]) != expected


def test_enable_and_disable(calls: "list[dict]") -> None:
    """Both any number of times; afterwards the layers are what they were."""
    model = small_model("qwen2")
    before = [dict(vars(module)) for module in model.modules()]
    expected = generate(model, PROMPTS[:4])
    integration.disable(model)
    integration.enable(model)
    integration.enable(model)
    assert generate(model, PROMPTS[:4]) == expected and calls
    integration.disable(model)
    calls.clear()
    assert [vars(module) for module in model.modules()] == before
    assert generate(model, PROMPTS[:4]) == expected and not calls
    integration.disable(model)


def test_other_forward_passes_are_the_models_own(calls: "list[dict]") -> None:
    model = small_model("gpt-neox")
    model.set_attn_implementation("sdpa")
    inputs = torch.tensor(PROMPTS[0][:7])[None]
    expected = model(inputs).logits
    with enabled(model):
        assert torch.equal(model(inputs).logits, expected)
        assert model.generate(inputs, max_new_tokens=3, do_sample=False).shape == (1, 10)
        model(inputs).logits.sum().backward()
    assert not calls


def test_steps_that_attention_itself_caches_are_its_own() -> None:
    """Flash attention's decode gets block tables in place of write indices."""
    with enabled(small_model("llama")) as model:
        forward = model.model.layers[0].self_attn.forward
        forward._own, forward._fused = (lambda **_: "its own"), (lambda **_: "ours")
        paged = dict(cache=object.__new__(PagedAttentionCache), position_embeddings=None)
        assert forward(**paged, block_table=None) == "ours"
        assert forward(**paged, block_table=torch.zeros(1, 1, 1)) == "its own"
        assert forward(position_embeddings=None) == "its own"


def replace_last_layer(model: torch.nn.Module) -> None:
    model.model.layers[-1].self_attn.forward = lambda *args, **kwargs: None


def replace_rotary(model: torch.nn.Module) -> None:
    model.model.rotary_emb.forward = lambda *args, **kwargs: None


def other_rotary(model: torch.nn.Module) -> None:
    model.model.rotary_emb = small_model("qwen2").model.rotary_emb


def drop_layer(model: torch.nn.Module) -> None:
    del model.model.layers[-1]


def subclass_layer(model: torch.nn.Module) -> None:
    layer = model.model.layers[-1].self_attn
    layer.__class__ = type("MyAttention", (type(layer),), {})


def rewrite_forward(model: torch.nn.Module) -> None:
    layer = model.model.layers[-1].self_attn
    layer.__class__ = type("LlamaAttention", (type(layer),), {"forward": lambda self: None})
    layer.__class__.__module__ = "transformers.models.llama.modeling_llama"


def enable_half(model: torch.nn.Module) -> None:
    integration.enable(model)
    del model.model.layers[-1].self_attn.forward


def enable_and_replace_rotary(model: torch.nn.Module) -> None:
    integration.enable(model)
    model.model.rotary_emb = copy.deepcopy(model.model.rotary_emb)


REFUSED = {
    "replaced layer": ("LlamaAttention with its own forward, got one that is replaced", replace_last_layer),
    "replaced rotary": (
        "LlamaRotaryEmbedding with its own forward, got one that is replaced",
        replace_rotary,
    ),
    "other rotary": ("LlamaRotaryEmbedding with LlamaAttention, got .*Qwen2RotaryEmbedding", other_rotary),
    "missing layer": (r"one attention layer for each of 2 layers, got layers \[0\]", drop_layer),
    "own class": (
        "attention layers among GPTNeoXAttention, .*Qwen3Attention, got .*MyAttention",
        subclass_layer,
    ),
    "other code": (
        "forward that calls transformers' apply_rotary_pos_emb and ALL_ATTENTION_FUNCTIONS, got another",
        rewrite_forward,
    ),
    "half enabled": (
        "all or no layers enabled with the model's rotary embedding, got 1 of 2: disable it first",
        enable_half,
    ),
    "enabled with another rotary": (
        "all or no layers enabled with the model's rotary embedding, got 0 of 2: disable it first",
        enable_and_replace_rotary,
    ),
    "dtype": ("a model in float32, float16 or bfloat16, got torch.float64", torch.nn.Module.double),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_whole(name: str) -> None:
    """Never half: the layers before the one that is not known are left alone."""
    message, change = REFUSED[name]
    model = small_model("llama")
    change(model)
    before = [dict(vars(module)) for module in model.modules()]
    with pytest.raises(ValueError, match=f"enable: expected .*{message}.*; the model is unchanged$"):
        integration.enable(model)
    assert [vars(module) for module in model.modules()] == before


def test_replaced_rotation_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rotation that is not the model's own would be left out without a word."""
    model = small_model("llama")
    monkeypatch.setattr(transformers.models.llama.modeling_llama, "apply_rotary_pos_emb", lambda *args: args[:2])
    with pytest.raises(ValueError, match="forward that calls transformers' apply_rotary_pos_emb, got another"):
        integration.enable(model)
    assert not any("forward" in vars(module) for module in model.modules())


def test_failure_while_enabling(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_model("llama")
    last, own = model.model.layers[-1].self_attn, torch.nn.Module.__setattr__

    def fail_at_last(module: torch.nn.Module, name: str, value: object) -> None:
        if module is last and name == "forward":
            raise MemoryError
        own(module, name, value)

    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(torch.nn.Module, "__setattr__", fail_at_last)
        integration.enable(model)
    assert not any("forward" in vars(module) for module in model.modules())


def test_unknown_models_and_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    for function in ("enable", "disable"):
        for model, got in ((None, "a NoneType"), ("llama", "a str"), (transformers.LlamaModel, "LlamaModel")):
            with pytest.raises(TypeError, match=f"{function}: model: expected a torch.nn.Module, got {got}$"):
                getattr(integration, function)(model)
    with pytest.raises(
        ValueError, match="among GPTNeoXAttention.*got transformers.models.gemma.*GemmaAttention"
    ):
        integration.enable(small_model("gemma"))
    with pytest.raises(
        ValueError, match="attention layers and one rotary embedding, got 0 and 0 in a Linear"
    ):
        integration.enable(torch.nn.Linear(2, 2))
    monkeypatch.setattr(transformers, "__version__", "5.18.0")
    with pytest.raises(ValueError, match="expected transformers 5.17, got 5.18.0; the model is unchanged"):
        integration.enable(small_model("llama"))
