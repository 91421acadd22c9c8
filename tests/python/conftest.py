"""Tests of a `device` run on the CPU and on CUDA; without a CUDA device that half is skipped, and counted."""

import os

import pytest
import torch
from hypothesis import HealthCheck, settings

HAS_CUDA = torch.cuda.is_available()

# Properties try the same examples in every CI run; elsewhere they look for new ones.
settings.register_profile(
    "kvrope",
    deadline=None,
    derandomize=bool(os.environ.get("CI")),
    database=None if os.environ.get("CI") else settings.default.database,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.function_scoped_fixture,
        HealthCheck.filter_too_much,
    ],
    print_blob=True,
)
settings.load_profile("kvrope")


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> str:
    if request.param == "cuda" and not HAS_CUDA:
        pytest.skip("no CUDA device")
    return request.param


@pytest.fixture
def cuda() -> str:
    if not HAS_CUDA:
        pytest.skip("no CUDA device")
    return "cuda"


@pytest.fixture(autouse=True)
def no_fault_left_behind():
    """A recorded fault that no test asked for is a failure; it must not reach the next test either."""
    yield
    if HAS_CUDA:
        import kvrope

        torch.cuda.synchronize()  # an illegal access would surface here
        fault = kvrope.last_fault("cuda")
        if fault is not None:
            with pytest.raises(IndexError):
                kvrope.check("cuda")
        assert fault is None, f"left behind: {fault}"
