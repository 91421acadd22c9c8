"""Small models of transformers with random weights, from their config classes; runs of its engine."""

import gc

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    ContinuousBatchingConfig,
    GemmaConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GenerationConfig,
    GPTNeoXConfig,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    Phi3Config,
    Qwen2Config,
    Qwen3Config,
)

VOCABULARY = 97
SIZES = dict(
    vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=512, bos_token_id=None, eos_token_id=None, pad_token_id=0,
    initializer_range=0.2,
)  # fmt: skip
LLAMA_3_8B_LAYER = dict(
    hidden_size=4096, intermediate_size=14336, num_attention_heads=32, num_key_value_heads=8,
    initializer_range=0.02,
)  # fmt: skip
HEAD = dict(head_dim=16)
LLAMA3 = dict(
    rope_type="llama3", rope_theta=10000.0, factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
    original_max_position_embeddings=64,
)  # fmt: skip
YARN = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=64)
LONGROPE = dict(
    rope_type="longrope", rope_theta=10000.0, original_max_position_embeddings=64, factor=8.0,
    short_factor=[1.0] * 4, long_factor=[1.0, 2.0, 4.0, 8.0],
)  # fmt: skip
GEMMA3_ROPE = dict(
    full_attention=dict(rope_type="linear", rope_theta=1000000.0, factor=8.0),
    sliding_attention=dict(rope_type="default", rope_theta=10000.0),
)
WINDOWS = dict(sliding_window=20, layer_types=["sliding_attention", "full_attention"])

CONFIGS = {
    "llama": lambda: LlamaConfig(**SIZES),
    "llama-llama3": lambda: LlamaConfig(**SIZES, rope_parameters=dict(LLAMA3)),
    "llama-dynamic": lambda: LlamaConfig(
        **SIZES | {"max_position_embeddings": 64},
        rope_parameters=dict(rope_type="dynamic", rope_theta=10000.0, factor=2.0),
    ),
    "qwen2": lambda: Qwen2Config(**SIZES),
    "qwen3": lambda: Qwen3Config(**SIZES, **HEAD),
    "mistral": lambda: MistralConfig(**SIZES, sliding_window=None),
    "mistral-window": lambda: MistralConfig(**SIZES, sliding_window=20),
    "gemma2": lambda: Gemma2Config(**SIZES, **HEAD, **WINDOWS, query_pre_attn_scalar=16),
    "gemma3": lambda: Gemma3TextConfig(
        **SIZES, **HEAD, **WINDOWS, query_pre_attn_scalar=16,
        rope_parameters={layer_type: dict(given) for layer_type, given in GEMMA3_ROPE.items()},
    ),
    "phi3": lambda: Phi3Config(**SIZES, sliding_window=None),
    "phi3-partial-longrope": lambda: Phi3Config(
        **SIZES | {"hidden_size": 64}, sliding_window=None,
        rope_parameters=LONGROPE | {"partial_rotary_factor": 0.5}, original_max_position_embeddings=64,
    ),
    "gpt-neox": lambda: GPTNeoXConfig(
        **{k: v for k, v in SIZES.items() if k != "num_key_value_heads"} | {"hidden_size": 64},
        rotary_pct=0.25,
    ),
    "gpt-oss": lambda: GptOssConfig(
        **SIZES, **HEAD, **WINDOWS, rope_parameters=dict(YARN), num_local_experts=4, num_experts_per_tok=2
    ),
    "llama-3-8b-layers": lambda: LlamaConfig(
        **SIZES | LLAMA_3_8B_LAYER,
        rope_parameters=dict(rope_type="default", rope_theta=500000.0),
    ),
    "gemma": lambda: GemmaConfig(**SIZES, **HEAD),  # not supported
}  # fmt: skip


@pytest.fixture(autouse=True)
def quick_engine():
    """One thread: models this small are slower with more. And the engine collects garbage twice a run:
    nothing that is there already shall be looked at."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    gc.freeze()
    yield
    gc.unfreeze()
    torch.set_num_threads(threads)


def small_model(name: str, attention: str = "sdpa", dtype: torch.dtype = torch.float32, device: str = "cpu"):
    torch.manual_seed(11)
    model = AutoModelForCausalLM.from_config(
        CONFIGS[name](), attn_implementation=f"paged|{attention}", dtype=dtype
    )
    return model.to(device).eval()


def prompts(count: int, longest: int = 90) -> "list[list[int]]":
    """Of mixed lengths, some with a prefix in common that the engine shares the blocks of."""
    generator = torch.Generator().manual_seed(5)
    shared = torch.randint(1, VOCABULARY, (longest // 2,), generator=generator).tolist()
    made = []
    for i in range(count):
        length = int(torch.randint(1, longest + 1, (), generator=generator))
        own = torch.randint(1, VOCABULARY, (length,), generator=generator).tolist()
        made.append((shared + own)[:longest] if i % 4 == 0 else own)
    return made


def generate(model, inputs: "list[list[int]]", new_tokens: int = 6, **engine: object) -> "list[list[int]]":
    """Greedy tokens of each prompt from generate_batch, prompts in chunks beside decodes."""
    engine = dict(block_size=16, num_blocks=160, max_batch_tokens=128, use_cuda_graph=False) | engine
    outputs = model.generate_batch(
        inputs=inputs,
        generation_config=GenerationConfig(
            max_new_tokens=new_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0
        ),
        continuous_batching_config=ContinuousBatchingConfig(**engine),
    )
    assert len(outputs) == len(inputs)
    ordered = sorted(outputs.values(), key=lambda output: int(output.request_id.rsplit("_", 1)[-1]))
    return [output.generated_tokens for output in ordered]
