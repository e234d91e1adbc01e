"""The requests that routers send to daemons, as their sources and specifications define them
(docs/reference/scale-out.md)."""
import json
import pathlib
import re
import subprocess
import tempfile
import time

from weftd import LIMIT_S, Weftd, keys_in, main, program, wait_until

ROOT = pathlib.Path(__file__).resolve().parents[2]
# The model server protocol of the Gateway API inference extension, which llm-d's endpoint picker follows.
GAUGES_OF_PICKER = ["vllm:num_requests_waiting", "vllm:num_requests_running", "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"]
# The engine statistics of the production stack's router.
OF_PRODUCTION_STACK = {"vllm:num_requests_running": "gauge", "vllm:num_requests_waiting": "gauge", "vllm:gpu_cache_usage_perc": "gauge",
                       "vllm:gpu_prefix_cache_hits_total": "counter", "vllm:gpu_prefix_cache_queries_total": "counter"}

# AIBrix's gateway (pkg/metrics/metrics.go): the metrics that it reads of a pod, and the parts of its queries.
OF_AIBRIX = {"vllm:num_requests_running": "gauge", "vllm:num_requests_waiting": "gauge", "vllm:num_preemptions_total": "counter",
             "vllm:kv_cache_usage_perc": "gauge", "vllm:gpu_cache_usage_perc": "gauge", "vllm:prefix_cache_hits_total": "counter",
             "vllm:cpu_cache_usage_perc": "gauge",  # without it least-kv-cache ignores a pod
             "vllm:prefix_cache_queries_total": "counter", "vllm:prompt_tokens_total": "counter", "vllm:generation_tokens_total": "counter",
             "vllm:request_success_total": "counter", "vllm:lora_requests_info": "gauge", "vllm:engine_sleep_state": "gauge",
             **{f"vllm:{name}": "histogram" for name in
                ("iteration_tokens_total", "request_max_num_generation_tokens", "e2e_request_latency_seconds", "request_queue_time_seconds", "request_inference_time_seconds", "request_prompt_tokens",
                 "request_generation_tokens", "time_to_first_token_seconds", "time_per_output_token_seconds", "inter_token_latency_seconds",
                 "request_time_per_output_token_seconds", "request_decode_time_seconds", "request_prefill_time_seconds")}}


def families(text):
    """Returns the families of a page of metrics: {name: type}, {name: [(labels, value)]}; checks that each sample
    belongs to a declared family."""
    types, samples = {}, {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in types, "declared twice: " + name
            types[name] = kind
        elif line and not line.startswith("#"):
            name, labels, value = re.fullmatch(r"([\w:]+)(?:\{(.*)\})? (\S+)", line).groups()
            samples.setdefault(name, []).append((dict(re.findall(r'(\w+)="([^"]*)"', labels or "")), float(value)))
    for name in samples:
        assert name in types or re.sub(r"_(bucket|sum|count)$", "", name) in types, name
        assert len({tuple(labels) for labels, _ in samples[name]}) == 1, "not the same labels: " + name
    return types, samples


def scrape(w):
    status, headers, text = w.request("GET", "/metrics")
    assert status == 200 and headers["Content-Type"].startswith("text/plain"), headers
    return families(text)


def assert_routes(w, *paths, headers=None):
    """Checks that each route exists: it answers an empty object with 400, unlike an unknown route."""
    for path in paths:
        status, _, value = w.request("POST", path, {}, headers)
        assert status == 400 and value["error"]["message"], (path, status)


def one(samples, name):
    assert len(samples[name]) == 1, (name, samples[name])
    return samples[name][0][1]


def test_an_endpoint_picker_finds_its_gauges():
    with Weftd("--max-running", "1") as w:
        types, samples = scrape(w)
        for name in GAUGES_OF_PICKER:
            assert types[name] == "gauge" and one(samples, name) == 0, name
        labels, value = samples["vllm:cache_config_info"][0]
        assert int(labels["block_size"]) in (16, 32, 64) and int(labels["num_gpu_blocks"]) > 0 and value == 1
        labels, value = samples["vllm:lora_requests_info"][0]
        assert labels == {"max_lora": "0", "running_lora_adapters": "", "waiting_lora_adapters": ""} and value > 1.7e9
        assert_routes(w, "/v1/chat/completions", "/v1/completions")
        live = [w.connect() for _ in range(3)]
        try:
            for connection in live:
                connection.request("POST", "/v1/completions", json.dumps({"prompt": "a", "max_tokens": 100000, "ignore_eos": True}),
                                   {"Content-Type": "application/json"})
            end = time.monotonic() + LIMIT_S
            while [one(samples, name) for name in GAUGES_OF_PICKER[:2]] != [2, 1] or not one(samples, "vllm:kv_cache_usage_perc"):
                assert time.monotonic() < end, {name: samples[name] for name in GAUGES_OF_PICKER}
                _, samples = scrape(w)
            assert one(samples, "vllm:gpu_cache_usage_perc") == one(samples, "vllm:kv_cache_usage_perc") <= 1
        finally:
            for connection in live:
                connection.close()


def test_the_production_stack_finds_models_and_statistics():
    with tempfile.TemporaryDirectory() as folder, Weftd("--api-keys", keys_in(folder), "--model-name", "m") as w:
        status, _, value = w.request("GET", "/v1/models", headers={"Authorization": "Bearer ka"})
        assert status == 200 and value["object"] == "list" and value["data"][0]["id"] == "m"
        assert w.request("GET", "/v1/models")[0] == 401
        assert w.request("GET", "/health")[0] == 200 and w.request("GET", "/is_sleeping")[2] == {"is_sleeping": False}
        assert_routes(w, "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/tokenize", "/detokenize", "/v1/rerank", "/rerank", "/v1/score", "/score",
                      "/v1/responses", "/v1/messages", headers={"Authorization": "Bearer ka"})
        for _ in range(2):
            r = w.request("POST", "/v1/completions", {"model": "m", "prompt": "weft " * 100, "max_tokens": 1}, {"Authorization": "Bearer ka"})
            assert r[0] == 200, r
        wait_until("the worker's report", lambda: one(scrape(w)[1], "vllm:gpu_prefix_cache_hits_total"))
        types, samples = scrape(w)
        for name, kind in OF_PRODUCTION_STACK.items():
            assert types[name] == kind and len(samples[name]) == 1, name
        assert one(samples, "vllm:gpu_prefix_cache_hits_total") < one(samples, "vllm:gpu_prefix_cache_queries_total")


def test_aibrix_finds_its_metrics():
    with Weftd() as w:
        assert w.request("POST", "/v1/completions", {"prompt": "a", "max_tokens": 4, "ignore_eos": True})[0] == 200
        types, samples = scrape(w)
        assert {name: types.get(name) for name in OF_AIBRIX} == OF_AIBRIX
        assert {labels["sleep_state"]: v for labels, v in samples["vllm:engine_sleep_state"]} == {"awake": 1, "weights_offloaded": 0, "discard_all": 0}
        old, new = ([v for _, v in samples[name + "_bucket"]] for name in ("vllm:time_per_output_token_seconds", "vllm:inter_token_latency_seconds"))
        assert old == new and old[-1] == 3, old


def test_sglangs_gateway_finds_a_worker():
    with Weftd("--model-name", "m") as w:
        assert w.request("GET", "/health")[0] == 200
        for path in ("/server_info", "/get_server_info", "/model_info", "/get_model_info"):
            status, _, info = w.request("GET", path)
            assert status == 200 and info["model_path"] == info["served_model_name"] == "m", (path, info)
            assert info["is_generation"] is True and info["model_type"] == "qwen3" and info["dp_size"] == 1
            assert info["context_length"] > 0 and info["max_total_tokens"] > 0 and info["max_running_requests"] > 0
        load = w.request("GET", "/get_load")[2]
        assert isinstance(load, list) and load[0] == {"dp_rank": 0, "num_reqs": 0, "num_waiting_reqs": 0, "num_tokens": 0}, load
        assert w.request("GET", "/v1/loads")[2]["loads"][0]["num_total_reqs"] == 0
        assert_routes(w, "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/rerank", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens")
        # Not implemented: SGLang's protocol of generation, and cache flushes by clients.
        for path in ("/generate", "/flush_cache"):
            assert w.request("POST", path, {})[0] == 404, path


def test_sglangs_gateway_merges_metrics_of_workers():
    # /engine_metrics: replaces colons by underscores in each page, then merges families of one name.
    with Weftd() as a, Weftd("--max-running", "1") as b:
        pages = [families(w.request("GET", "/metrics")[2].replace(":", "_")) for w in (a, b)]
    (types, samples), (other_types, others) = pages
    assert types == other_types and types["vllm_num_requests_running"] == "gauge"
    for name in samples:
        assert {frozenset(labels) for labels, _ in samples[name]} == {frozenset(labels) for labels, _ in others[name]}, name


def test_the_manifests_name_what_weft_has():
    text = (ROOT / "packaging/kubernetes.yaml").read_text()
    documents = [d for d in text.split("\n---\n") if d.strip()]
    kinds = [re.search(r"^kind: (\w+)$", d, re.M).group(1) for d in documents]
    assert kinds == ["Deployment", "InferencePool", "HTTPRoute"], kinds
    flags = re.findall(r"^ +- --([a-z-]+)=", documents[0], re.M)
    with Weftd() as w:
        for path in re.findall(r"path: (/\w+)", documents[0], re.M):
            assert w.request("GET", path)[0] == 200, path
    printed = subprocess.run([program("weftd"), "--print-config"], capture_output=True, text=True, check=True).stdout
    assert flags and set(flags) <= set(re.findall(r"^#? ?([a-z-]+) =", printed, re.M)), flags


main(globals())
