"""Every error text in the sources is one that some bad call brings about and that a test reads.

The texts are taken from the sources: the string literals of each check, in their order. A check that is added
without a call that fails it makes this test fail.
"""

import re
from typing import Any, Iterator

import kvrope
import pytest
import torch

from cases import Case, build
from runner import ROOT
from test_argument_kinds import KINDS
from test_errors import BAD, bad_arguments
from test_faults import MESSAGES
from test_halves import bad_calls
from without_data import on_meta

# Where the texts of a call and of the fault record stand.
SOURCES = [
    "check_arguments", "cpu_kernel", "cuda_fault", "fault", "overlap", "run_operation", "tensor_matcher",
]  # fmt: skip

# Part of a text that no call from Python brings about on the CPU: the test that does, and what it has of it.
ELSEWHERE = {
    "got an undefined tensor": ("cpp/api_option_errors_test.cpp", '"v_scale_undefined"'),
    "got none": ("cpp/api_row_errors_test.cpp", '"got none"'),
    "a device this build has a kernel for": ("cpp/api_row_errors_test.cpp", '"device_without_a_kernel"'),
    "while a graph is being captured": ("python/test_graphs.py", 'match="captur"'),
    "; the row was not cached": ("python/test_cuda.py", 'match="slot_mapping.*128|128.*slot_mapping"'),
}
WITHOUT_CUDA = "this build has no CUDA kernels"


def balanced(source: str, start: int) -> str:
    """From an opening parenthesis to the one that closes it."""
    depth, in_string, i = 0, False, start
    while True:
        if source[i] == '"' and source[i - 1] != "\\":
            in_string = not in_string
        elif not in_string:
            depth += {"(": 1, ")": -1}.get(source[i], 0)
            if depth == 0:
                return source[start + 1 : i]
        i += 1


LITERAL = r'"(?:[^"\\]|\\.)*"'


def arms(check: str) -> Iterator[str]:
    """The check with each arm of each `a ? "b" : "c"`: both are texts of their own."""
    choice = re.search(rf"\?\s*({LITERAL})\s*:\s*({LITERAL})", check)
    if choice is None:
        yield check
        return
    for arm in choice.groups():
        yield from arms(check[: choice.start()] + arm + check[choice.end() :])


def literals(check: str) -> list[str]:
    joined = re.sub(r'"\s+"', "", check)  # one literal over several lines
    found = [literal[1:-1].replace('\\"', '"') for literal in re.findall(LITERAL, joined)]
    return [literal for literal in found if literal.strip()]


def constants(source: str) -> dict[str, str]:
    """Texts that checks name: constexpr const char* kText = "..."."""
    return dict(re.findall(rf"const char\* (k\w+) =\s*({LITERAL});", source))


def error_texts() -> dict[str, str]:
    """A name for each text of an error, file and literals, and the pattern that a message with it matches."""
    texts = {}
    for path in (ROOT / "cache_ops" / f"{name}.cpp" for name in SOURCES):
        source = re.sub(r"//[^\n]*", "", path.read_text())
        names = {**constants((ROOT / "cache_ops" / "check_arguments.h").read_text()), **constants(source)}
        for start in re.finditer(r"\b(?:TORCH_CHECK\w*|require)(?=\((?!bool))", source):
            check = balanced(source, start.end())
            for name, literal in names.items():
                check = re.sub(rf"\b{name}\b", lambda _: literal, check)
            for arm in arms(check):
                parts = literals(arm)
                if parts and len("".join(parts)) > 12:
                    name = f"{path.name}: {' '.join(' '.join(parts).split())}"
                    texts[name] = ".*".join(re.escape(part) for part in parts)
    return texts


def messages() -> Iterator[str]:
    """What bad calls say."""

    def message_of(arguments: dict[str, Any]) -> str:
        with pytest.raises((ValueError, TypeError, IndexError)) as error:
            kvrope.fused_qk_rope_reshape_and_cache(**arguments)
        return str(error.value)

    for bad in BAD:
        yield message_of(bad_arguments(bad, "cpu"))
    for case, _ in MESSAGES.values():
        yield message_of(build(Case(**case)).arguments)
    for make, *_ in KINDS.values():
        arguments = build(Case(dtype=torch.float32)).arguments
        yield message_of({**arguments, "v": make(arguments["v"])})
    for call, _ in bad_calls("cpu"):
        with pytest.raises((ValueError, TypeError)) as error:
            call.run()
        yield str(error.value)
    arguments = build(Case()).arguments
    k, v = arguments["k"], arguments["v"]
    yield message_of({**arguments, "v": v.to("meta")})
    yield message_of({**arguments, "k_out": v})
    yield message_of({**arguments, "k_out": k[:1].expand(5, -1, -1)})
    emptied = k.clone()
    emptied.untyped_storage().resize_(0)
    yield message_of({**arguments, "k": emptied})
    yield message_of({**arguments, "k_out": torch.zeros_like(k).requires_grad_()})
    shared = torch.zeros(6, 2, 64, dtype=torch.bfloat16)
    yield message_of({**arguments, "k": shared[1:], "k_out": shared[:5]})
    yield message_of({**arguments, "value_cache": arguments["key_cache"]})
    shuffled = build(Case(layout="shuffled", block_size=24, x=8)).arguments
    yield message_of({**shuffled, "key_cache": torch.zeros(8, 2, 4, 24, 16, dtype=torch.bfloat16)})
    huge = on_meta(build(Case(num_tokens=1))).arguments
    for name in ("k", "v"):
        huge[name] = huge[name].expand(2**31, -1, -1)
    yield message_of({**huge, "k_out": huge["k"]})
    for device in ("meta", "cuda:0"):
        if device == "meta" or not kvrope.has_cuda:
            with pytest.raises(ValueError) as error:
                kvrope.check(device)
            yield str(error.value)


def test_every_error_text_is_read_by_a_test() -> None:
    texts = error_texts()
    assert len(texts) > 35, sorted(texts)
    for text, (file, fragment) in ELSEWHERE.items():
        assert any(text in name for name in texts), text
        assert fragment in (ROOT / "tests" / file).read_text(), (file, fragment)
    left_out = [*ELSEWHERE, WITHOUT_CUDA] if kvrope.has_cuda else [*ELSEWHERE]
    said = list(messages())
    missing = [
        name
        for name, pattern in sorted(texts.items())
        if not any(text in name for text in left_out)
        and not any(re.search(pattern, message) for message in said)
    ]
    assert missing == []


def test_no_path_ends_the_process() -> None:
    """Nothing of ours calls exit or abort, nor checks with an assertion that does."""
    for folder in ("kernels", "cache_ops", "bindings"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".cpp", ".h", ".cu", ".cuh"):
                source = re.sub(r"//[^\n]*", "", path.read_text())
                assert not re.search(r"\b(?:exit|abort|_Exit|quick_exit|terminate|assert)\s*\(", source), path
                assert "__trap" not in source, path
