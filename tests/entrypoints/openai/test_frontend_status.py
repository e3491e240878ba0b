"""Health, version, engine, models, metrics, OpenAPI, the page, the key, and what importing costs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from engine.entrypoints.openai.app import OPEN_PATHS
from engine.entrypoints.openai.limits import HttpLimits
from engine.entrypoints.openai.protocol import (
    ChatCompletionRequest,
    ChatMessage,
    CompletionRequest,
    DetokenizeRequest,
    StreamOptions,
    TokenizeRequest,
)
from engine.metrics.prometheus import LatencyHistogram
from tests.entrypoints.openai.fakes import FakeClient, make_app

ROOT = Path(__file__).resolve().parents[3]
KEY = "correct horse"


@pytest.fixture
def http() -> Iterator[TestClient]:
    with TestClient(make_app(FakeClient())) as client:
        yield client


def test_readiness_follows_the_engine() -> None:
    engine = FakeClient()
    with TestClient(make_app(engine, http=HttpLimits(health_timeout_s=0.05))) as http:
        assert http.get("/health/ready").json() == {"status": "ready"}
        assert http.get("/health").status_code == 200
        engine.stats_delay_s = 1
        answer = http.get("/health/ready")
        assert answer.status_code == 503 and answer.json() == {"status": "unresponsive"}
        assert 'engine_up{engine="v1"} 0.0' in http.get("/metrics").text
        engine.dead = True
        assert http.get("/health/ready").json() == {"status": "dead"}
        assert http.get("/health/live").status_code == 200


def test_version_and_engine(http: TestClient) -> None:
    version = http.get("/version").json()
    assert version["engine"] == "v1" and version["version"] == "0.0.test"
    info = http.get("/v1/engine").json()
    assert info["decision"] == {
        "requested": "v1",
        "chosen": "v1",
        "source": "environment",
        "reasons": ["ENGINE_V1=1"],
    }
    assert info["config"]["scheduler"]["max_num_seqs"] == 8
    assert info["model_limits"]["max_model_len"] == 128
    assert info["capabilities"] == [{"feature": "chat", "v0": "proven", "v1": "proven"}]
    assert info["http_limits"]["max_header_bytes"] == 16384
    assert "secret" not in http.get("/v1/engine").text


def test_models(http: TestClient) -> None:
    (card,) = http.get("/v1/models").json()["data"]
    assert card == http.get("/v1/models/toy/model").json()
    assert card["id"] == "toy/model" and card["object"] == "model" and card["created"] == 1_700_000_000
    missing = http.get("/v1/models/other")
    assert missing.status_code == 404 and missing.json()["error"]["code"] == "model_not_found"


def test_unknown_routes_and_wrong_methods(http: TestClient) -> None:
    for path in ("/nope", "/v1/completions/", "/static/../app.py", "/static/chat", "/v1//models"):
        answer = http.get(path)
        assert answer.status_code == 404 and answer.json()["error"]["code"] == "not_found"
    for method, path in (("GET", "/v1/completions"), ("POST", "/v1/models"), ("DELETE", "/"), ("OPTIONS", "/tokenize")):
        answer = http.request(method, path)
        assert answer.status_code == 405 and answer.headers["allow"]
        assert answer.json()["error"]["code"] == "method_not_allowed"


def test_every_answer_says_engine_and_request_id(http: TestClient) -> None:
    for path in ("/", "/nope", "/health/live"):
        answer = http.get(path, headers={"x-request-id": "abc-1"})
        assert answer.headers["x-engine"] == "v1" and answer.headers["x-request-id"] == "abc-1"
    for hostile in ("a" * 200, "a b", "<script>", ""):
        assert http.get("/", headers={"x-request-id": hostile}).headers["x-request-id"] != hostile


def samples(text: str) -> dict[str, float]:
    return {
        sample.name + "".join(f",{k}={v}" for k, v in sorted(sample.labels.items()) if k != "engine"): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_count_and_are_all_labelled(http: TestClient) -> None:
    for stream in (False, True):
        http.post("/v1/completions", json={"prompt": "hello", "stream": stream})
    http.post("/v1/completions", json={"prompt": 7})
    text = http.get("/metrics").text
    for family in text_string_to_metric_families(text):
        assert all(sample.labels["engine"] == "v1" for sample in family.samples), family.name
        assert family.name.startswith("engine_")
    found = samples(text)
    assert found["engine_http_requests_total,method=POST,route=/v1/completions,status=200"] == 2
    assert found["engine_http_requests_total,method=POST,route=/v1/completions,status=400"] == 1
    assert found["engine_request_success_total,finished_reason=stop"] == 2
    assert found["engine_server_prompt_tokens_total"] == 4 and found["engine_server_generation_tokens_total"] == 20
    assert found["engine_time_to_first_token_seconds_count"] == 2
    # 3 deltas of 10 tokens; the first delta's 3 tokens have no gap of their own.
    assert found["engine_inter_token_latency_seconds_count"] == 14
    assert found["engine_request_time_per_output_token_seconds_count"] == 2
    assert found["engine_e2e_request_latency_seconds_count"] == 2
    assert found["engine_num_requests_running"] == 0 and found["engine_kv_cache_usage_perc"] == 0.5
    assert found["engine_prompt_tokens_total"] == 7 and found["engine_up"] == 1
    assert found["engine_http_requests_in_flight"] == 0


def test_two_apps_share_no_counter(http: TestClient) -> None:
    http.post("/v1/completions", json={"prompt": "hello"})
    with TestClient(make_app(FakeClient())) as other:
        assert samples(other.get("/metrics").text)["engine_e2e_request_latency_seconds_count"] == 0


def test_a_histogram_puts_durations_where_prometheus_does() -> None:
    histogram = LatencyHistogram((0.1, 1.0))
    for seconds, count in ((0.1, 1), (0.11, 2), (5.0, 1)):
        histogram.observe(seconds, count)
    buckets, total = histogram.buckets()
    assert buckets == [("0.1", 1), ("1.0", 3), ("+Inf", 4)]
    assert total == pytest.approx(0.1 + 0.22 + 5)


# OpenAPI


def walk(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        yield node
        for value in node.values():
            yield from walk(value)
    elif isinstance(node, list):
        for value in node:
            yield from walk(value)


def test_the_openapi_document_is_coherent(http: TestClient) -> None:
    document = http.get("/openapi.json").json()
    schemas = document["components"]["schemas"]
    used = set()
    for node in walk(document):
        if "$ref" in node:
            prefix, _, name = node["$ref"].rpartition("/")
            assert prefix == "#/components/schemas" and name in schemas
            used.add(name)
    assert used == set(schemas)
    routes = {(r.path.replace(":path", ""), m) for r in http.app.routes for m in r.methods if m != "HEAD"}
    assert routes == {(path, m.upper()) for path, item in document["paths"].items() for m in item}


def test_every_field_a_client_can_send_is_bounded(http: TestClient) -> None:
    """Numbers have both ends, strings and lists a largest size."""
    schemas = http.get("/openapi.json").json()["components"]["schemas"]
    kinds = (ChatCompletionRequest, CompletionRequest, TokenizeRequest, DetokenizeRequest, ChatMessage, StreamOptions)
    for name in [kind.__name__ for kind in kinds] + ["ContentPart"]:
        assert schemas[name]["additionalProperties"] is False
        for node in walk(schemas[name]["properties"]):
            kind = node.get("type")
            if kind in ("integer", "number"):
                assert "maximum" in node and {"minimum", "exclusiveMinimum"} & set(node), (name, node)
            elif kind in ("string", "array"):
                assert "maxLength" in node or "maxItems" in node, (name, node)


@pytest.mark.parametrize("kind", [ChatCompletionRequest, CompletionRequest, ChatMessage, StreamOptions])
def test_every_field_not_supported_is_listed(kind: Any) -> None:
    import typing

    from engine.entrypoints.openai.protocol import NotYet

    hints = typing.get_type_hints(kind, include_extras=True)
    assert {name for name, hint in hints.items() if hint == NotYet} == set(kind.NEUTRAL)


def test_every_field_of_the_openai_client_is_known() -> None:
    from openai.types import completion_create_params
    from openai.types.chat import completion_create_params as chat_create_params

    for params, kind in (
        (chat_create_params.CompletionCreateParamsBase, ChatCompletionRequest),
        (completion_create_params.CompletionCreateParamsBase, CompletionRequest),
    ):
        assert set(params.__annotations__) <= set(kind.__struct_fields__)


# The page


def test_the_page_loads_only_what_is_here_and_runs_nothing_inline(http: TestClient) -> None:
    page = http.get("/")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    assert "<script>" not in page.text and "style=" not in page.text and "onclick" not in page.text
    import re

    links = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert len(links) >= 4
    for link in links:
        assert http.get(link).status_code == 200
    for name in ("chat.js", "render.js"):
        source = http.get(f"/static/{name}").text
        assert "innerHTML =" not in source and "insertAdjacentHTML" not in source and "eval(" not in source


# The key


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        KEY,
        f"Basic {KEY}",
        "Bearer",
        "Bearer ",
        "Bearer wrong",
        f"Bearer {KEY}x",
        f"Bearer {KEY[:-1]}",
        "Bearer é",
    ],
)
def test_without_the_key_only_the_open_paths_answer(authorization: str | None) -> None:
    engine = FakeClient()
    headers = {} if authorization is None else {"authorization": authorization.encode("latin-1")}
    with TestClient(make_app(engine, api_key=KEY)) as http:
        paths = {route.path.replace("{model_id:path}", "toy/model") for route in http.app.routes}
        assert paths > OPEN_PATHS
        for path in (
            *paths,
            "/nope",
            "/%2e%2e/v1/models",
            "/v1//models",
            "/HEALTH/LIVE",
            "/health/live/",
            "/health/live/../ready",
        ):
            for method in ("GET", "POST", "HEAD", "OPTIONS"):
                answer = http.request(method, path, headers=headers)
                assert (answer.status_code == 401) == (path not in OPEN_PATHS), (method, path)
        refused = http.get("/v1/models", headers=headers, params={"api_key": KEY})
        assert refused.json()["error"]["code"] == "invalid_api_key"
        assert refused.headers["www-authenticate"] == "Bearer" and KEY not in refused.text
    assert not engine.requests


def test_with_the_key_everything_answers() -> None:
    with TestClient(make_app(FakeClient(), api_key=KEY)) as http:
        for scheme in ("Bearer", "bearer"):
            assert http.get("/v1/models", headers={"authorization": f"{scheme} {KEY}"}).status_code == 200
        twice = [("authorization", f"Bearer {KEY}"), ("authorization", "Bearer x")]
        assert http.get("/v1/models", headers=twice).status_code == 401


def test_importing_the_app_imports_no_torch() -> None:
    code = (
        "import sys, engine.entrypoints.openai.app, engine.entrypoints.openai.server\n"
        "heavy = {'torch', 'transformers', 'pydantic', 'fastapi'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)


def test_labels_reach_the_log_and_cannot_forge_lines(http: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "engine.http"):
        body = {"prompt": "secret prompt", "user": "bob\nPOST /forged 200", "temperature": 0}
        http.post("/v1/completions", json=body, headers={"x-request-id": "mine-7"})
        http.get("/health/live")
    (record,) = [r for r in caplog.records if r.name == "engine.http"]
    line = record.getMessage()
    assert line.startswith("POST /v1/completions 200 ") and "label=mine-7" in line and "user='bob\\nPOST" in line
    assert "\n" not in line and "secret" not in line
