"""Steps of transformers' continuous batching engine: how long each took, and how many launches one made."""

import time
from contextlib import contextmanager
from typing import Callable, Iterator, List, NamedTuple, Optional

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import ContinuousBatchingConfig, GenerationConfig
from transformers.generation.continuous_batching.model_runner import ModelRunner


class Step(NamedTuple):
    begun: float  # seconds
    ended: float  # when the device has finished the model's forward pass and the choice of tokens
    requests: int
    is_decode: bool  # one token of each request


class Recorder:
    """Of one run of the engine. profile_at: which of its decode steps is profiled, and counts for no time."""

    def __init__(self, profile_at: Optional[int] = None) -> None:
        self.steps: List[Step] = []
        self.launches: Optional[int] = None
        self._profile_at = profile_at

    def step(self, runner: ModelRunner, compute: Callable[[], None]) -> None:
        requests = runner.inputs_and_outputs.requests_in_batch
        is_decode = all(request.query_length == 1 for request in requests)
        if is_decode and sum(step.is_decode for step in self.steps) == self._profile_at:
            self.launches = count_launches(compute)
            self._profile_at = None
            return
        synchronize()
        begun = time.perf_counter()
        compute()
        synchronize()
        self.steps.append(Step(begun, time.perf_counter(), len(requests), is_decode))

    def decode_milliseconds(self, batch: int, skipped: int) -> List[float]:
        """Of the model's part of each step of the whole batch, without the first ones."""
        steps = [step for step in self.steps if step.is_decode and step.requests == batch][skipped:]
        return [1000 * (step.ended - step.begun) for step in steps]

    def seconds(self) -> float:
        return self.steps[-1].ended - self.steps[0].begun


def count_launches(compute: Callable[[], None]) -> int:
    """Kernels, copies and fills on a GPU; on the CPU the operators that would launch one."""
    if not torch.cuda.is_available():
        with OperatorCount() as operators:
            compute()
        return operators.count
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        compute()
        synchronize()
    on_device = (event for event in profiled.events() if event.device_type == torch.autograd.DeviceType.CUDA)
    return sum(1 for event in on_device if not event.is_user_annotation)


class OperatorCount(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        self.count += not operator.is_view and "empty" not in str(operator)
        return operator(*args, **(kwargs or {}))


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


@contextmanager
def recorded(recorder: Recorder) -> Iterator[Recorder]:
    original = ModelRunner.compute_batch
    ModelRunner.compute_batch = lambda self, *args: recorder.step(self, lambda: original(self, *args))
    try:
        yield recorder
    finally:
        ModelRunner.compute_batch = original


def run_engine(
    model: torch.nn.Module, inputs: List[List[int]], new_tokens: int, graphs: bool, recorder: Recorder
) -> int:
    """Generates greedily for all inputs at once. The number of tokens."""
    block_size = 16
    longest = max(len(tokens) for tokens in inputs) + new_tokens
    blocks = len(inputs) * -(-longest // block_size) + 8
    engine = ContinuousBatchingConfig(
        block_size=block_size, num_blocks=blocks, max_batch_tokens=max(2 * len(inputs), 1024),
        use_cuda_graph=graphs, use_async_batching=False, allow_block_sharing=False,
    )  # fmt: skip
    greedy = GenerationConfig(max_new_tokens=new_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0)
    with recorded(recorder):
        outputs = model.generate_batch(inputs, generation_config=greedy, continuous_batching_config=engine)
    generated = sum(len(output.generated_tokens) for output in outputs.values())
    if generated != len(inputs) * new_tokens:
        raise RuntimeError(f"the engine made {generated} tokens, not {len(inputs)} * {new_tokens}")
    return generated
