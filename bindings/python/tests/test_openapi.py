"""The pages of a master, by a client that is generated from their description."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from _cluster import Cluster
from _fixtures import NewStore

NewCluster = Callable[..., Cluster]

#: An answer that does not end.
ENDLESS = {"/api/v1/live"}


class Generated:
    """The package of a generated client, with a client for a master."""

    def __init__(self, http: str, folder: Path) -> None:
        with urllib.request.urlopen(f"{http}/openapi.json") as answer:
            self.description: dict[str, Any] = json.load(answer)
        document = folder / "openapi.json"
        document.write_text(json.dumps(self.description))
        command = [sys.executable, "-m", "openapi_python_client", "generate", "--meta", "none"]
        command += ["--path", str(document), "--output-path", str(folder / "generated_pages")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        told = done.stdout + done.stderr
        assert done.returncode == 0, told
        # It leaves out what it does not understand, and says so.
        left_out = [line for line in told.splitlines() if "ruff" not in line and "WARNING" in line]
        assert not left_out, told
        assert "unable to" not in told.lower(), told
        self.models = importlib.import_module("generated_pages.models")
        self.client = importlib.import_module("generated_pages.client").Client(
            base_url=http, raise_on_unexpected_status=True
        )

    def operations(self, method: str) -> list[tuple[str, dict[str, Any]]]:
        paths = self.description["paths"].items()
        return [(path, of[method]) for path, of in paths if method in of]

    def call(self, method: str, path: str, **arguments: object) -> Any:
        """The whole answer of an operation."""
        operation = self.description["paths"][path][method]
        name = (method + path.replace("/", "_").replace(".", "_")).rstrip("_")
        module = importlib.import_module(f"generated_pages.api.{operation['tags'][0]}.{name}")
        return module.sync_detailed(client=self.client, **arguments)

    def ask(self, method: str, path: str, **arguments: object) -> Any:
        """What an operation answers."""
        answer = self.call(method, path, **arguments)
        assert answer.status_code == 200, (path, answer)
        return answer.parsed


def test_a_generated_client_reads_every_page(
    new_cluster: NewCluster,
    new_store: NewStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = new_cluster(nodes=2, master_flags=["--enable_multi_tenants"])
    store = new_store(cluster)
    assert store.put("k", b"value") == 0
    monkeypatch.syspath_prepend(tmp_path)
    pages = Generated(cluster.http, tmp_path)
    segments = [node.segment for node in cluster.nodes]

    known = {"key": "k", "keys": "k,missing", "segment": segments[0]}
    asked = 0
    for path, operation in pages.operations("get"):
        parameters = operation.get("parameters", [])
        names = {it["name"] for it in parameters if it.get("required") or it["name"] == "keys"}
        if path in ENDLESS or names - known.keys():
            continue
        answer = pages.call("get", path, **{name: known[name] for name in names})
        assert answer.status_code in {200, 404}, (path, answer)
        kinds = operation["responses"]["200"].get("content", {})
        if answer.status_code == 200 and "application/json" in kinds:
            described = kinds["application/json"].get("schema")
            parsed = answer.parsed
            # What the client has understood is what was said.
            if described and parsed is not None:
                shown = (
                    [it.to_dict() for it in parsed]
                    if isinstance(parsed, list)
                    else parsed.to_dict()
                )
                assert shown == json.loads(answer.content), path
        asked += 1
    assert asked > 20

    assert len(pages.ask("get", "/api/v1/nodes")) == 2
    story = pages.ask("get", "/api/v1/object", key="k")
    assert story.key == "k"

    models = pages.models
    quota = pages.ask(
        "put",
        "/api/v1/tenant_quotas",
        tenant_id="t",
        body=models.NewQuota(requested_quota_bytes=4096),
    )
    assert quota.data.requested_quota_bytes == 4096
    quotas = pages.ask("get", "/api/v1/tenant_quotas")
    assert "t" in {it.tenant_id for it in quotas.data}
    assert pages.ask("delete", "/api/v1/tenant_quotas", tenant_id="t").success

    job = pages.ask("post", "/api/v1/drain_jobs", body=models.NewDrain(segments=segments[:1]))
    assert job.success
    drain = pages.ask("get", "/api/v1/drain_jobs/query", job_id=job.job_id)
    assert drain.job_id == job.job_id
    # It may be over by now.
    cancelled = pages.call("post", "/api/v1/drain_jobs/cancel", job_id=job.job_id)
    assert cancelled.status_code in {200, 409}, cancelled
    refused = pages.call("get", "/api/v1/drain_jobs/query", job_id="none")
    assert isinstance(refused.parsed, models.Failure), refused
    assert not refused.parsed.success

    removed = pages.ask("post", "/api/v1/remove_all", force="true")
    assert removed.removed_count == 1
    assert store.is_exist("k") == 0
    pages.client.get_httpx_client().close()
