"""`MooncakeConfig`: files, environment, sizes, and what is said about mistakes."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from mc_store.mooncake.mooncake_config import (
    DEFAULT_GLOBAL_SEGMENT_SIZE,
    DEFAULT_LOCAL_BUFFER_SIZE,
    MooncakeConfig,
    _parse_bool,
    _parse_segment_size,
)

REQUIRED = {
    "local_hostname": "node-1",
    "metadata_server": "P2PHANDSHAKE",
    "master_server_address": "10.0.0.1:50051",
}


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "CONFIG_PATH MASTER PROTOCOL DEVICE TE_META_DATA_SERVER LOCAL_HOSTNAME "
        "GLOBAL_SEGMENT_SIZE LOCAL_BUFFER_SIZE TENANT_ID OFFLOAD_ENABLED "
        "OFFLOAD_FILE_STORAGE_PATH ENABLE_CLIENT_HTTP_SERVER CLIENT_HTTP_PORT"
    ).split():
        monkeypatch.delenv(f"MOONCAKE_{name}", raising=False)


def write(folder: Path, **settings: Any) -> Path:
    file = folder / "config.json"
    file.write_text(json.dumps({**REQUIRED, **settings}))
    return file


def test_defaults(tmp_path: Path) -> None:
    config = MooncakeConfig.from_file(write(tmp_path))
    assert config == MooncakeConfig(
        local_hostname="node-1",
        metadata_server="P2PHANDSHAKE",
        global_segment_size=3_355_443_200,
        local_buffer_size=1 << 30,
        protocol="tcp",
        device_name="",
        master_server_address="10.0.0.1:50051",
        enable_ssd_offload=False,
        ssd_offload_path="",
        tenant_id="default",
        enable_client_http_server=False,
        client_http_port=9300,
    )
    assert config.global_segment_size == DEFAULT_GLOBAL_SEGMENT_SIZE
    assert config.local_buffer_size == DEFAULT_LOCAL_BUFFER_SIZE


@pytest.mark.parametrize(
    ("written", "size"),
    [
        (0, 0),
        (4096, 4096),
        (1e9, 1_000_000_000),
        ("4096", 4096),
        ("16MB", 16 << 20),
        ("16mb", 16 << 20),
        (" 2 GB ", 2 << 30),
        ("1.5k", 1536),
        ("3T", 3 << 40),
        ("12B", 12),
        ("1e3", 1000),
        # Exactly, although no float has this value.
        ("9007199254740993", 9007199254740993),
    ],
)
def test_sizes(tmp_path: Path, written: object, size: int) -> None:
    config = MooncakeConfig.from_file(write(tmp_path, global_segment_size=written))
    assert config.global_segment_size == size


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        (-1, ValueError),
        ("-1GB", ValueError),
        ("", ValueError),
        ("GB", ValueError),
        ("16 apples", ValueError),
        ("1KMB", ValueError),
        ("80%", ValueError),
        ("inf", ValueError),
        ("nan", ValueError),
        (True, TypeError),
        ([1], TypeError),
    ],
)
def test_sizes_that_cannot_be_meant(
    tmp_path: Path, written: object, problem: type[Exception]
) -> None:
    with pytest.raises(problem, match="local_buffer_size"):
        MooncakeConfig.from_file(write(tmp_path, local_buffer_size=written))


@pytest.mark.parametrize(
    ("written", "flag"),
    [(True, True), (0, False), ("true", True), ("Off", False), ("", False), ("yes", True)],
)
def test_flags(tmp_path: Path, written: object, flag: bool) -> None:
    config = MooncakeConfig.from_file(write(tmp_path, enable_ssd_offload=written))
    assert config.enable_ssd_offload is flag


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ({"protocol": ""}, ValueError),
        ({"protocol": 5}, ValueError),
        ({"local_hostname": " "}, ValueError),
        ({"master_server_address": 50051}, ValueError),
        ({"device_name": 1}, TypeError),
        ({"tenant_id": ["a"]}, TypeError),
        ({"enable_ssd_offload": "perhaps"}, ValueError),
        ({"client_http_port": "http"}, ValueError),
        ({"client_http_port": 1.5}, TypeError),
        ({"client_http_port": 65536}, ValueError),
        ({"client_http_port": "5_0"}, ValueError),
    ],
)
def test_wrong_values_are_named(
    tmp_path: Path, setting: dict[str, object], problem: type[Exception]
) -> None:
    with pytest.raises(problem, match=next(iter(setting))):
        MooncakeConfig.from_file(write(tmp_path, **setting))


def test_null_is_the_default(tmp_path: Path) -> None:
    config = MooncakeConfig.from_file(
        write(tmp_path, tenant_id=None, protocol=None, ssd_offload_path=None)
    )
    assert (config.tenant_id, config.protocol, config.ssd_offload_path) == ("default", "tcp", "")


def test_tenants_may_be_numbers(tmp_path: Path) -> None:
    assert MooncakeConfig.from_file(write(tmp_path, tenant_id=42)).tenant_id == "42"


def test_protocol_is_lower_case(tmp_path: Path) -> None:
    assert MooncakeConfig.from_file(write(tmp_path, protocol=" RDMA ")).protocol == "rdma"


def test_spellings_of_setup_are_understood(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    settings = {
        "local_hostname": "a",
        "metadata_server": "b",
        "master_server_addr": "c:1",
        "rdma_devices": "mlx5_0",
    }
    file.write_text(json.dumps(settings))
    config = MooncakeConfig.from_file(file)
    assert config.master_server_address == "c:1"
    assert config.device_name == "mlx5_0"


def test_missing_key_names_the_nearest(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text('{"local_hostname": "a", "metadata_server": "b", "master_server_adress": "c"}')
    with pytest.raises(
        ValueError, match=r"master_server_address \(did you mean 'master_server_adress'\?\)"
    ):
        MooncakeConfig.from_file(file)


def test_misspelt_key_is_logged_and_others_are_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = write(tmp_path, global_segmnet_size=1, prefill_url="http://elsewhere")
    with caplog.at_level(logging.WARNING):
        config = MooncakeConfig.from_file(file)
    assert config.global_segment_size == DEFAULT_GLOBAL_SEGMENT_SIZE
    assert [record.getMessage() for record in caplog.records] == [
        "unknown setting 'global_segmnet_size' is ignored (did you mean 'global_segment_size'?)"
    ]


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        MooncakeConfig.from_file(tmp_path / "none.json")
    for content, problem in (("", json.JSONDecodeError), ("{", json.JSONDecodeError)):
        (tmp_path / "bad.json").write_text(content)
        with pytest.raises(problem, match=r"bad\.json: not JSON"):
            MooncakeConfig.from_file(tmp_path / "bad.json")
    (tmp_path / "bad.json").write_bytes(b"\xff")
    with pytest.raises(ValueError, match=r"bad\.json: not JSON"):
        MooncakeConfig.from_file(tmp_path / "bad.json")
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(ValueError, match="expected a JSON object"):
        MooncakeConfig.from_file(tmp_path / "list.json")


def test_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"MOONCAKE_CONFIG_PATH .* MOONCAKE_MASTER"):
        MooncakeConfig.load_from_env()
    monkeypatch.setenv("MOONCAKE_MASTER", "10.0.0.1:50051")
    config = MooncakeConfig.load_from_env()
    assert config.master_server_address == "10.0.0.1:50051"
    assert config.local_hostname == "localhost"
    assert config.metadata_server == "P2PHANDSHAKE"
    assert config.global_segment_size == DEFAULT_GLOBAL_SEGMENT_SIZE
    monkeypatch.setenv("MOONCAKE_GLOBAL_SEGMENT_SIZE", "8GB")
    monkeypatch.setenv("MOONCAKE_OFFLOAD_ENABLED", "on")
    monkeypatch.setenv("MOONCAKE_CLIENT_HTTP_PORT", "9400")
    config = MooncakeConfig.load_from_env()
    assert config.global_segment_size == 8 << 30
    assert config.enable_ssd_offload is True
    assert config.client_http_port == 9400


def test_file_goes_before_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOONCAKE_MASTER", "elsewhere:1")
    monkeypatch.setenv("MOONCAKE_CONFIG_PATH", str(write(tmp_path)))
    assert MooncakeConfig.load_from_env().master_server_address == "10.0.0.1:50051"


def test_replace_checks_names_and_values(tmp_path: Path) -> None:
    config = MooncakeConfig.from_file(write(tmp_path))
    assert config.replace({"global_segment_size": "1MB"}).global_segment_size == 1 << 20
    assert config.replace({"master_server_addr": "x:1"}).master_server_address == "x:1"
    assert config.global_segment_size == DEFAULT_GLOBAL_SEGMENT_SIZE
    with pytest.raises(ValueError, match=r"unknown setting 'protocl' .*'protocol'"):
        config.replace({"protocl": "tcp"})


def test_setup_arguments(tmp_path: Path) -> None:
    arguments = MooncakeConfig.from_file(write(tmp_path, device_name="mlx5_0")).setup_arguments()
    assert arguments["master_server_addr"] == "10.0.0.1:50051"
    assert arguments["rdma_devices"] == "mlx5_0"
    assert "device_name" not in arguments
    assert len(arguments) == 12


@pytest.mark.parametrize(
    ("written", "size"),
    [
        *((5, 5), (-5, -5), (1.5, 1), ("0", 0), ("5b", 5), ("1KB", 1024), (" 1 MB ", 1 << 20)),
        *(("1.5GB", 3 << 29), ("1e3kb", 1_024_000), ("-1GB", -1 << 30), (".5gb", 1 << 29)),
        *(("3T", 3 << 40), ("5.", 5), ("+5", 5), ("1_000", 1000)),
    ],
)
def test_sizes_of_launch_scripts(written: object, size: int) -> None:
    assert _parse_segment_size(written) == size


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        *((text, ValueError) for text in ("", "GB", "abc", "1PB", "1KMB", "80%", "1GiB", "nan")),
        *(("inf", OverflowError), (None, TypeError), ([1], TypeError), ("1 024", ValueError)),
    ],
)
def test_sizes_that_launch_scripts_cannot_mean(written: object, problem: type[Exception]) -> None:
    with pytest.raises(problem):
        _parse_segment_size(written)


@pytest.mark.parametrize(
    ("written", "flag"),
    [(None, False), ("", False), (" ON ", True), ("enable", True), ("no", False), (2, True)],
)
def test_flags_of_launch_scripts(written: object, flag: bool) -> None:
    assert _parse_bool(written) is flag


@pytest.mark.parametrize("written", ["T", "enabled", "n", [1]])
def test_flags_that_launch_scripts_cannot_mean(written: object) -> None:
    with pytest.raises(ValueError, match="must be true or false"):
        _parse_bool(written)
