"""Launches that fail: the same call raises it, and what comes after is as it would have been.

A launch is made to fail from outside: on a stream whose capture is broken already, and on a device that a
failed assertion has lost. Each in a process of its own, with outputs in place: the call allocates nothing.
"""

from cuda_calls import run_script

BROKEN_CAPTURE = """
import os
good = build(Case("cuda"))
good.copy().run()
call = good.copy()
call.arguments.update(q_out=call.arguments["q"], k_out=call.arguments["k"])
stream = torch.cuda.Stream()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.stream(stream):
    graph.capture_begin()
    try:
        torch.cuda.synchronize()  # not allowed during capture: the capture is broken from here on
    except RuntimeError:
        pass
    try:
        call.run()
    except RuntimeError as error:
        message = str(error)
    else:
        raise SystemExit("the launch into a broken capture raised nothing")
    try:
        graph.capture_end()
    except RuntimeError:
        pass
assert "captur" in message, message
verify(good)  # the device, its streams and the error state are as before
assert torch.ones(8, device="cuda").sum().item() == 8
print("done", flush=True)
os._exit(0)  # whatever torch thinks of its graph
"""

LOST_DEVICE = """
import os
call = build(Case("cuda"))
call.copy().run()
torch.cuda.synchronize()
try:
    torch.zeros(4, device="cuda")[torch.tensor([99], device="cuda")]
    torch.cuda.synchronize()
except RuntimeError:
    pass
else:
    raise SystemExit("no assertion failed")
call.arguments.update(q_out=call.arguments["q"], k_out=call.arguments["k"])
try:
    call.run()
except RuntimeError as error:
    assert "assert" in str(error), error
    print("done", flush=True)
else:
    raise SystemExit("the launch on a lost device raised nothing")
os._exit(0)  # torch's own clean-up has no device any more
"""


def test_launch_into_a_broken_capture(cuda: str) -> None:
    result = run_script(BROKEN_CAPTURE)
    assert "done" in result.stdout, result.stdout + result.stderr


def test_launch_on_a_lost_device(cuda: str) -> None:
    result = run_script(LOST_DEVICE)
    assert "done" in result.stdout, result.stdout + result.stderr
