#!/usr/bin/env python3
"""Measure transformers' continuous batching engine before and after kvrope.integrations.transformers.enable.

Kernel launches of a layer, the model's part of a decode step at several batch sizes, with and without CUDA
graphs, and tokens a second of whole runs, of a model of Llama-3-8B's shape with random weights in bf16 and
paged|sdpa attention. Before and after take turns; times are medians. --small is a model for machines without
a GPU.

    tools/bench/transformers_engine.py --json engine.json
"""

import argparse
import json
import random
import statistics
import sys
from pathlib import Path
from typing import Dict, List

import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM

import kvrope
from kvrope.integrations.transformers import disable, enable

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from bench.engine_steps import Recorder, run_engine  # noqa: E402

LLAMA_3_8B = dict(
    hidden_size=4096, intermediate_size=14336, num_attention_heads=32, num_key_value_heads=8,
    vocab_size=128256, max_position_embeddings=8192,
    rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
)  # fmt: skip
SMALL = dict(
    hidden_size=64, intermediate_size=128, num_attention_heads=4, num_key_value_heads=2, vocab_size=97,
    max_position_embeddings=8192, rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
)  # fmt: skip
STATES = {"before": disable, "after": enable}
WARM_UP_STEPS = 4


def make_model(shape: Dict, layers: int, device: str) -> torch.nn.Module:
    config = LlamaConfig(
        **shape, num_hidden_layers=layers, bos_token_id=None, eos_token_id=None, pad_token_id=0
    )
    with torch.device(device):
        model = LlamaForCausalLM._from_config(config, attn_implementation="paged|sdpa", dtype=torch.bfloat16)
    return model.eval()


def random_prompts(lengths: List[int], vocabulary: int, seed: int) -> List[List[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(1, vocabulary) for _ in range(length)] for length in lengths]


def launches(shape: Dict, device: str) -> Dict[str, float]:
    """Of one layer in a decode step of 8 requests: the difference of models with four layers and with two."""
    prompts = random_prompts([24] * 8, shape["vocab_size"], 1)
    counted: Dict[str, float] = {}
    models = {layers: make_model(shape, layers, device) for layers in (2, 4)}
    for state, change in STATES.items():
        totals = {}
        for layers, model in models.items():
            change(model)
            recorder = Recorder(profile_at=3)
            run_engine(model, prompts, 8, False, recorder)
            totals[layers] = recorder.launches
        counted[state] = (totals[4] - totals[2]) / 2
    return counted


def decode_steps(model: torch.nn.Module, options: argparse.Namespace, batch: int, graphs: bool) -> Dict:
    prompts = random_prompts([options.context] * batch, model.config.vocab_size, batch)
    times: Dict[str, List[float]] = {state: [] for state in STATES}
    for _ in range(options.rounds):
        for state, change in STATES.items():
            change(model)
            recorder = Recorder()
            run_engine(model, prompts, options.new_tokens, graphs, recorder)
            times[state] += recorder.decode_milliseconds(batch, WARM_UP_STEPS)
    medians = {state: statistics.median(found) for state, found in times.items()}
    steps = {f"{state}_steps": len(found) for state, found in times.items()}
    return dict(batch=batch, graphs=graphs, context=options.context, **milliseconds(medians), **steps)


def milliseconds(medians: Dict[str, float]) -> Dict[str, float]:
    named = {f"{state}_ms": round(value, 4) for state, value in medians.items()}
    return {**named, "after_over_before": round(medians["after"] / medians["before"], 4)}


def end_to_end(model: torch.nn.Module, options: argparse.Namespace) -> Dict:
    """Prompts of mixed lengths, from the first step to the end of the last, the engine's own work included.
    Without graphs, as the engine itself chooses for sdpa."""
    draw = random.Random(3)
    lengths = [draw.randint(options.context // 4, 2 * options.context) for _ in range(options.requests)]
    prompts = random_prompts(lengths, model.config.vocab_size, 4)
    rates: Dict[str, List[float]] = {state: [] for state in STATES}
    for _ in range(options.rounds):
        for state, change in STATES.items():
            change(model)
            recorder = Recorder()
            tokens = run_engine(model, prompts, options.new_tokens, False, recorder)
            rates[state].append(tokens / recorder.seconds())
    medians = {state: round(statistics.median(found), 1) for state, found in rates.items()}
    named = {f"{state}_tokens_per_second": rate for state, rate in medians.items()}
    return dict(requests=options.requests, new_tokens=options.new_tokens, **named)


def measure(options: argparse.Namespace) -> Dict:
    on_cuda = options.device == "cuda"
    shape = SMALL if options.small else LLAMA_3_8B
    document = {
        "meta": {
            "arguments": sys.argv[1:], "kvrope": kvrope.__version__, "transformers": transformers.__version__,
            "torch": torch.__version__, "cuda": torch.version.cuda,
        },
        "device": {"type": options.device, "name": torch.cuda.get_device_name() if on_cuda else ""},
        "model": {"shape": shape, "layers": options.layers, "dtype": "bfloat16"},
        "launches_per_layer": say("launches of a layer", launches(shape, options.device)),
        "decode_steps": [], "end_to_end": [],
    }  # fmt: skip
    model = make_model(shape, options.layers, options.device)
    for graphs in (False, True) if on_cuda else (False,):
        for batch in options.batches:
            document["decode_steps"].append(say("decode step", decode_steps(model, options, batch, graphs)))
    document["end_to_end"].append(say("end to end", end_to_end(model, options)))
    disable(model)
    return document


def say(what: str, found: Dict) -> Dict:
    values = ", ".join(f"{key} {value}" for key, value in found.items())
    print(f"{what}: {values}", file=sys.stderr, flush=True)
    return found


def parse(arguments: List[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", required=True, help="where the results go")
    present = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=["cpu", "cuda"], default=present)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 64, 256])
    parser.add_argument("--context", type=int, default=64, help="tokens of each prompt")
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--requests", type=int, default=256, help="of the end-to-end run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("there is no CUDA device")
    if options.new_tokens <= WARM_UP_STEPS + 1:
        parser.error(f"--new-tokens: expected more than {WARM_UP_STEPS + 1}, got {options.new_tokens}")
    return options


def main() -> None:
    options = parse(sys.argv[1:])
    transformers.logging.set_verbosity_error()
    Path(options.json).write_text(json.dumps(measure(options), indent=1) + "\n")


if __name__ == "__main__":
    main()
