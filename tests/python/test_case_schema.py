"""Schema and parser of the case files: what the schema refuses, the runner refuses at the same place."""

import copy
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jsonschema
import pytest
from runner import SHAPES, regress

SCHEMA = json.loads((SHAPES / "case_file.schema.json").read_text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
BAD_VALUES = ["16", 16.5, -1, None, True, [], {}, 10**19, ["16"], [16.5], {"no_such_key": 1}, ""]


def resolve(schema: dict) -> dict:
    while "$ref" in schema:
        target = SCHEMA
        for part in schema["$ref"].removeprefix("#/").split("/"):
            target = target[part]
        schema = target
    return schema


def key_paths(schema: dict, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every key of a case, members of objects included."""
    schema = resolve(schema)
    for part in (schema, *map(resolve, schema.get("anyOf", []))):
        for key, value in part.get("properties", {}).items():
            yield (*path, key)
            yield from key_paths(value, (*path, key))


def document(path: tuple[str, ...], value: object, inside: str = "case") -> dict:
    keys = value
    for key in reversed(path):
        keys = {key: keys}
    if inside == "defaults":
        return {"schema_version": 1, "defaults": keys, "cases": [{"id": "a"}]}
    if inside == "sweep":
        return {"schema_version": 1, "cases": [{"id": "a", "sweep": {".".join(path): [value]}}]}
    return {"schema_version": 1, "cases": [{"id": "a", **keys}]}


def pointer_of(path: tuple[str, ...], inside: str) -> str:
    where = {"case": "/cases/0/" + "/".join(path), "defaults": "/defaults/" + "/".join(path)}
    return where.get(inside, "/cases/0/sweep/" + ".".join(path))


def refused_documents() -> list[tuple[dict, str]]:
    """For each key a value that the schema refuses, in a case, the defaults or a sweep in turn."""
    documents = []
    for index, path in enumerate(key_paths(SCHEMA["$defs"]["case_keys"])):
        inside = ("case", "defaults", "sweep")[index % 3]
        refused = [value for value in BAD_VALUES if not VALIDATOR.is_valid(document(path, value, inside))]
        assert refused, path
        value = refused[index % len(refused)]
        documents.append((document(path, value, inside), pointer_of(path, inside)))
    return documents


def whole_files() -> list[tuple[dict, str]]:
    good: dict = {"schema_version": 1, "cases": [{"id": "a"}]}

    def changed(**keys: object) -> dict:
        return {**copy.deepcopy(good), **keys}

    return [
        (changed(schema_version=2), "/schema_version"),
        (changed(schema_version="1"), "/schema_version"),
        ({"cases": [{"id": "a"}]}, "/schema_version"),
        ({"schema_version": 1}, "/cases"),
        (changed(cases=[]), "/cases"),
        (changed(cases={}), "/cases"),
        (changed(cases=[3]), "/cases/0"),
        (changed(cases=[{"id": ""}]), "/cases/0/id"),
        (changed(cases=[{"id": 7}]), "/cases/0/id"),
        (changed(cases=[{"num_tokens": 7}]), "/cases/0/id"),
        (changed(cases=[{"id": "a", "no_such_key": 7}]), "/cases/0/no_such_key"),
        (changed(defaults={"id": "a"}), "/defaults/id"),
        (changed(defaults={"sweep": {}}), "/defaults/sweep"),
        (changed(defaults=[]), "/defaults"),
        (changed(sweep={"num_tokens": []}), "/sweep/num_tokens"),
        (changed(sweep={"num_tokens": 3}), "/sweep/num_tokens"),
        (changed(sweep={"no_such_key": [3]}), "/sweep/no_such_key"),
        (changed(sweep={"id": ["b"]}), "/sweep/id"),
        (changed(sweep={"table.no_such_key": [3]}), "/sweep/table.no_such_key"),
        (changed(sweep={"inputs.strides.keys": [{}]}), "/sweep/inputs.strides.keys"),
        (changed(sweep={"inputs.strides.q.stride": [[1]]}), "/sweep/inputs.strides.q.stride"),
        (changed(no_such_key=1), "/no_such_key"),
    ]


def complaint_of(case_file: Path) -> str:
    """The message with which the runner refuses the file; empty where it takes it."""
    result = regress("run", case_file, "--filter", "no such case")
    assert result.returncode == 2, result.stderr
    return "" if "0 cases matched" in result.stderr else result.stderr


def complaints(documents: list[dict], folder: Path) -> list[str]:
    files = []
    for index, value in enumerate(documents):
        files.append(folder / f"{index}.json")
        files[-1].write_text(json.dumps(value))
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(complaint_of, files))


def test_the_runner_refuses_what_the_schema_refuses(tmp_path: Path) -> None:
    cases = refused_documents() + whole_files()
    assert len(cases) > 100
    for value, _ in cases:
        assert not VALIDATOR.is_valid(value), value
    wrong = [
        f"{json.dumps(value)}: expected {pointer}, got {complaint!r}"
        for (value, pointer), complaint in zip(cases, complaints([value for value, _ in cases], tmp_path))
        if f"{pointer}: " not in complaint and f"{pointer}/" not in complaint
    ]
    assert not wrong, "\n".join(wrong)


PAIR_FACTORS = {"max_position_embeddings": 128, "short_factor": [1] * 32, "long_factor": [1.5] * 32}
ACCEPTED = [
    {"num_tokens": 16.0},
    {"scales": {"k": [], "v": [1, 2]}},
    {"table": {"width": 0}},
    {"table": {"scaling": {"type": "yarn", "original_max_position_embeddings": 64, "mscale": 1}}},
    {"table": {"scaling": {"rope_type": "longrope", "original_max_position_embeddings": 64, **PAIR_FACTORS}}},
    {"table": {"scaling": {"rope_type": "proportional", "partial_rotary_factor": 1}}},
    {"sweep": {"table.scaling.type": ["proportional"], "table.scaling.partial_rotary_factor": [0.5]}},
    {"slots": {"padding": [0, 1]}},
    {"slots": {"values": [-9223372036854775808, 9223372036854775807]}},
    {"inputs": {"strides": {}}},
    {"positions": {"values": []}},
    {"positions": {"values": [[], []]}},
    {"positions": {"values": [[1, 2, 3], [4, 5, 6], [7, 8, 9]]}, "mrope": {"section": [8, 12, 12]}},
    {"positions": {"axes": 3}, "mrope": {"section": [], "interleaved": True}},
    {"sweep": {"positions.axes": [1, 2], "q_out_dtype": ["auto", "fp8_e5m2"], "scales.q": [1, [1, 2]]}},
    {"norm": {}, "sweep": {"inputs.strides.q_weight.offset": [1], "inputs.strides.k_weight": [{}]}},
    {"inputs": {"strides": {"q": {}, "k": {"offset": 1}}}},
    {"model": {"name": "m", "config": {"rope_scaling": None, "anything": [1, {"x": "y"}]}}},
    {"outputs": {"zeros_out": "allocated"}},
    {"sweep": {"inputs.strides.q.offset": [0, 1], "inputs.strides.k": [{"offset": 2}]}},
    {"sweep": {"model.config.anything": [1, "b"], "model.name": ["m"]}},
    {"tags": []},
    {"tolerance": {"ulps": 0}},
]


def test_the_runner_takes_what_the_schema_takes(tmp_path: Path) -> None:
    documents = [{"schema_version": 1, "cases": [{"id": "a", **keys}]} for keys in ACCEPTED]
    for value in documents:
        VALIDATOR.validate(value)
    assert complaints(documents, tmp_path) == [""] * len(documents)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"schema_version": 1, "cases": [{"id"', '{"schema_version": 1, "schema_version": 1}'],
)
def test_text_that_is_no_document(text: str, tmp_path: Path) -> None:
    path = tmp_path / "cases.json"
    path.write_text(text)
    assert complaint_of(path)
