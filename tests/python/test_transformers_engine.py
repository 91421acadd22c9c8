"""tools/bench/transformers_engine.py on the CPU: it runs, and what it counts is what the layers save."""

import json
import sys
from pathlib import Path

import pytest
import torch
from small_models import quick_engine  # noqa: F401 (used by every test)

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
from bench import transformers_engine  # noqa: E402


def test_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    small = "--device cpu --small --layers 1 --batches 1 3 --requests 4 --rounds 1 --new-tokens 7 --context 8"
    arguments = [*small.split(), "--json", str(tmp_path / "engine.json")]
    monkeypatch.setattr(sys, "argv", ["transformers_engine.py", *arguments])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    transformers_engine.main()
    document = json.loads((tmp_path / "engine.json").read_text())
    launches = document["launches_per_layer"]
    # One call in place of ten operators of the rotation and two index_copy_.
    assert launches["before"] - launches["after"] == 11
    assert [step["batch"] for step in document["decode_steps"]] == [1, 3]
    for step in document["decode_steps"]:
        assert step["before_ms"] > 0 and step["after_ms"] > 0
        assert step["before_steps"] == step["after_steps"] == 2  # six decodes without the first four
    (whole,) = document["end_to_end"]
    assert whole["before_tokens_per_second"] > 0 and whole["after_tokens_per_second"] > 0
    assert "launches of a layer: before" in capsys.readouterr().err


def test_bad_arguments(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as stopped:
        transformers_engine.parse(["--json", "engine.json", "--new-tokens", "5"])
    assert stopped.value.code == 2
    assert "--new-tokens: expected more than 5, got 5" in capsys.readouterr().err
