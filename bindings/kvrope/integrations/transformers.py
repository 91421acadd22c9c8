"""kvrope inside Hugging Face transformers' continuous batching (``generate_batch`` and its paged cache).

    import kvrope.integrations.transformers

    kvrope.integrations.transformers.enable(model)
    outputs = model.generate_batch(inputs, generation_config, continuous_batching_config)
    kvrope.integrations.transformers.disable(model)

Each attention layer rotates q and k and writes k and v into the paged cache by one call, in place of
transformers' own rotation and two index_copy_. All else, projections, norms, attention, scheduling, is
transformers'.
"""

from typing import Callable, Dict, List, Tuple

import torch
import transformers
from torch.nn import Module

# transformers' inner parts are imported (by _transformers_attention) when its version is known to have them.
SUPPORTED_VERSIONS = ("5.17",)

# Attention class -> rotary class, in transformers.models.
FAMILIES: Dict[str, str] = {
    "gemma2.modeling_gemma2.Gemma2Attention": "Gemma2RotaryEmbedding",
    "gemma3.modeling_gemma3.Gemma3Attention": "Gemma3RotaryEmbedding",
    "gpt_neox.modeling_gpt_neox.GPTNeoXAttention": "GPTNeoXRotaryEmbedding",
    "gpt_oss.modeling_gpt_oss.GptOssAttention": "GptOssRotaryEmbedding",
    "llama.modeling_llama.LlamaAttention": "LlamaRotaryEmbedding",
    "mistral.modeling_mistral.MistralAttention": "MistralRotaryEmbedding",
    "phi3.modeling_phi3.Phi3Attention": "Phi3RotaryEmbedding",
    "qwen2.modeling_qwen2.Qwen2Attention": "Qwen2RotaryEmbedding",
    "qwen3.modeling_qwen3.Qwen3Attention": "Qwen3RotaryEmbedding",
}
_MODELS = "transformers.models."


def enable(model: Module) -> None:
    """Let the attention layers of ``model`` use kvrope under continuous batching. Nothing changes elsewhere:
    ordinary forward passes, ``generate`` and training run transformers' own code, and so do steps whose
    attention kernel writes the cache itself (flash attention's decode over block tables).

    For Llama, Qwen2, Qwen3, Mistral, Gemma-2 and Gemma-3 (text), Phi-3, GPT-NeoX and gpt-oss, in float32,
    float16 or bfloat16, on CPU or CUDA. The angles are those of the model's own rotary module, in the model's
    dtype: that module must not be replaced while the model is enabled. Not while the model generates; a
    persistent manager's captured graphs stay what they are. A second call changes nothing.

    Raises:
        ValueError: a version of transformers, a model or a layer that is not known, or a model of which only
            some layers, or layers with another rotary module, are enabled. No layer is changed then.
        TypeError: no torch.nn.Module.
    """
    _check_module("enable", model)
    _check_version()
    from ._transformers_attention import FusedAttention, FusedForward
    from ._transformers_table import RotaryTables

    layers, rotary = _parts(model)
    if enabled := _enabled_layers(model):
        return _check_enabled(layers, [layer for layer in enabled if layer.forward.rotary is rotary])
    _check_parts(model, layers, rotary, FusedForward.missing_names)
    attention = FusedAttention(RotaryTables(rotary, model.config.get_text_config()))
    forwards = [FusedForward(layer, attention, rotary) for layer in layers]
    try:
        for layer, forward in zip(layers, forwards):
            layer.forward = forward
    except BaseException:
        disable(model)
        raise


def disable(model: Module) -> None:
    """Give every layer of ``model`` its own forward back. Not while the model generates. Without ``enable``
    before it, nothing happens. TypeError for what is no torch.nn.Module."""
    _check_module("disable", model)
    for layer in _enabled_layers(model):
        del layer.forward


def _enabled_layers(model: Module) -> List[Module]:
    return [module for module in model.modules() if getattr(vars(module).get("forward"), "is_kvrope", False)]


def _check_module(function: str, model: object) -> None:
    if not isinstance(model, Module):
        got = model.__name__ if isinstance(model, type) else f"a {type(model).__name__}"
        name = f"kvrope.integrations.transformers.{function}"
        raise TypeError(f"{name}: model: expected a torch.nn.Module, got {got}")


def _check_version() -> None:
    version = transformers.__version__
    if not version.startswith(tuple(f"{known}." for known in SUPPORTED_VERSIONS)):
        raise ValueError(_refusal(f"transformers {' or '.join(SUPPORTED_VERSIONS)}", version))


def _parts(model: Module) -> Tuple[List[Module], Module]:
    """The attention layers and the rotary embedding."""
    layers = [module for module in model.modules() if type(module).__name__.endswith("Attention")]
    rotaries = [module for module in model.modules() if type(module).__name__.endswith("RotaryEmbedding")]
    if not layers or len(rotaries) != 1:
        counted = f"{len(layers)} and {len(rotaries)} in a {type(model).__name__}"
        raise ValueError(_refusal("a model with attention layers and one rotary embedding", counted))
    return layers, rotaries[0]


def _check_enabled(layers: List[Module], enabled: List[Module]) -> None:
    if len(enabled) != len(layers):
        got = f"{len(enabled)} of {len(layers)}: disable it first"
        raise ValueError(_refusal("all or no layers enabled with the model's rotary embedding", got))


def _check_parts(
    model: Module, layers: List[Module], rotary: Module, missing_names: Callable[[Module], List[str]]
) -> None:
    """The model is known in every part."""
    for layer in layers:
        _check_layer(layer, rotary, missing_names(layer))
    if model.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise ValueError(_refusal("a model in float32, float16 or bfloat16", str(model.dtype)))
    indices = [layer.layer_idx for layer in layers]
    count = model.config.get_text_config().num_hidden_layers
    if sorted(indices) != list(range(count)):
        raise ValueError(_refusal(f"one attention layer for each of {count} layers", f"layers {indices}"))


def _check_layer(layer: Module, rotary: Module, missing_names: List[str]) -> None:
    name = f"{type(layer).__module__}.{type(layer).__name__}"
    family = FAMILIES.get(name.removeprefix(_MODELS)) if name.startswith(_MODELS) else None
    if family is None:
        known = sorted(known.rsplit(".", 1)[1] for known in FAMILIES)
        raise ValueError(_refusal(f"attention layers among {', '.join(known)}", name))
    rotary_name = f"{type(rotary).__module__}.{type(rotary).__name__}"
    if rotary_name != f"{type(layer).__module__}.{family}":
        raise ValueError(_refusal(f"{family} with {type(layer).__name__}", rotary_name))
    for module in (layer, rotary):
        if "forward" in vars(module):
            raise ValueError(
                _refusal(f"{type(module).__name__} with its own forward", "one that is replaced")
            )
    if missing_names:
        raise ValueError(
            _refusal(f"{name}.forward that calls transformers' {' and '.join(missing_names)}", "another")
        )


def _refusal(expected: str, got: str) -> str:
    return f"kvrope.integrations.transformers.enable: expected {expected}, got {got}; the model is unchanged"
