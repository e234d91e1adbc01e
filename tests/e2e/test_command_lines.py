"""Command lines of llama-server, vLLM and Ollama's environment, as users and scripts type them: each starts, or the
message says what to type instead."""
import os
import subprocess

from weftd import main, program, tiny_model

OPEN = "add --api-key KEY, or --anonymous yes to serve everyone"
PULL = "has not been downloaded: run weftctl pull hf:"
GGUF = "the model file decides it"

# (the options behind -m FILE; "": it starts without a word about them; "+TEXT": it starts and says TEXT; else the remedy)
LLAMA_SERVER = [
    ("-c 32768 -ngl 99 -fa on --jinja --port 8081 --api-key secret-of-16-letters", ""),
    ("--host 0.0.0.0 --port 8080 -ngl 99 -c 4096", OPEN),
    ("--host 0.0.0.0 --port 8080 --api-key secret-of-16-letters -c 0", ""),
    ("-ngl 999 -ot .ffn_.*_exps.=CPU -fa -c 16384", "+as many experts in host memory as do not fit"),
    ("-ngl 99 -ot blk\\.(1[0-9]|2[0-9])\\.ffn_.*_exps\\.=CPU,.*=CUDA0", "+as many experts in host memory as do not fit"),
    ("--override-tensor exps=CPU --no-mmap --mlock", "+as many experts in host memory as do not fit"),
    ("-ot .*=CUDA0", ""),
    ("-ot ffn_up=CPU", "--device-layers N leaves the FFNs of further layers in host memory"),
    ("--mirostat 0 --temp 0.7", ""),
    ("--mirostat 2 --mirostat-lr 0.1", "this sampler is not implemented: leave it out"),
    ('--chat-template-kwargs {"enable_thinking":false}', ""),
    ('--chat-template-kwargs {"reasoning_effort":"high"} --jinja', ""),
    ("--chat-template-kwargs thinking", "chat-template-kwargs: must be a JSON object of plain values"),
    ("--reasoning-format none", ""),
    ("--reasoning-format deepseek --reasoning-budget 0", ""),
    ("--reasoning-format raw", "must be one of auto|none|deepseek|deepseek-legacy"),
    ("--spec-type ngram-simple --draft-max 64 --draft-min 4", "+--draft-max: 64 is more than weftd uses: 32"),
    ("--draft-max 16 --draft-p-min 0.75", ""),
    ("-c 128000 -np 4 -b 2048 -ub 512", ""),
    ("-dt 0.1 -cb -t 8 -tb 16", ""),
    ("--fim-qwen-7b-default", PULL + "ggml-org/Qwen2.5-Coder-7B-Q8_0-GGUF"),
    ("--fim-qwen-1.5b-default", PULL + "ggml-org/Qwen2.5-Coder-1.5B-Q8_0-GGUF"),
    ("--gpt-oss-20b-default", PULL + "ggml-org/gpt-oss-20b-GGUF"),
    ("-hf ggml-org/gemma-3-4b-it-GGUF", PULL + "ggml-org/gemma-3-4b-it-GGUF"),
    ("--verbose-prompt", ""),
    ("--repeat-last-n 64 --repeat-penalty 1.1", "+--repeat-last-n: penalties look at the whole context"),
    ("--numa distribute --prio 2 --poll 50", "+--numa: numactl binds weftd to a node"),
    ("--log-file /tmp/x.log --log-timestamps", "+--log-file: the log goes to stderr"),
    ("--samplers top_k;top_p;temperature", "+--samplers: the order of samplers is fixed"),
    ("-sm none -mg 0", ""),
    ("-dev CUDA0,CUDA1", ""),
    ("-ts 1,1", "--devices 0,1 names them"),
    ("--lora l.gguf", "merge it into the model"),
    ("--slot-save-path /s", "--kv-disk FOLDER keeps prefixes over restarts"),
    ("--cache-type-k q8_0 --cache-type-v q8_0 --cache-ram 2048", ""),
    ("-ctk q5_1", "use --kv-type-k f16, q8_0 or q4_0"),
    ("--tools all", "tools are run by clients"),
    ("--no-such-option 3", "unknown option (weftd --help lists all)"),
]
VLLM = [
    ("--max-model-len 32k --gpu-memory-utilization 0.9", "+--gpu-memory-utilization: the KV cache takes what"),
    ("--max-num-seqs 16 --max-num-batched-tokens 8192", ""),
    ("--enable-prefix-caching --enable-chunked-prefill --block-size 16", ""),
    ("--enable-auto-tool-choice --tool-call-parser hermes --reasoning-parser qwen3", ""),
    ("--swap-space 4", ""),
    ("--speculative-config {}", "--draft-model FILE names a draft model"),
    ("--tensor-parallel-size 1 --pipeline-parallel-size 1", ""),
    ("--tensor-parallel-size 2", ""),
    ("--served-model-name qwen3 gpt-4o --api-key secret-of-16-letters", ""),
    ("--uvicorn-log-level warning --disable-log-requests", ""),
    ("--dtype bfloat16 --quantization awq", "+--dtype: " + GGUF),
    ("--enforce-eager --trust-remote-code", ""),
    ("--kv-cache-dtype fp8", "use --kv-type q8_0"),
    ("--kv-cache-dtype auto --cpu-offload-gb 4", "+--cpu-offload-gb: what does not fit is left in host memory"),
    ("--enable-lora --lora-modules a=b", "merge it into the model"),
    ("--limit-mm-per-prompt image=2 --scheduling-policy fcfs", ""),
    ("--data-parallel-size 2", "start one weftd for each, behind a router"),
    ("Qwen/Qwen3-8B", "a model is given with --model FILE"),
]
ENVIRONMENTS = [
    ({"LLAMA_ARG_CTX_SIZE": "400", "LLAMA_ARG_FLASH_ATTN": "on"}, "", "+from the environment: LLAMA_ARG_"),
    ({"LLAMA_ARG_HOST": "0.0.0.0"}, "--port 8123", "listen: 0.0.0.0:8123"),
    ({"LLAMA_ARG_HOST": "0.0.0.0", "LLAMA_API_KEY": "secret-of-16-letters"}, "--port 8123", "+from the environment"),
    ({"OLLAMA_HOST": "http://0.0.0.0"}, "", "listen: 0.0.0.0:11434"),
    ({"OLLAMA_HOST": "0.0.0.0"}, "--listen 127.0.0.1:8123", "+from the environment: OLLAMA_HOST"),
    ({"OLLAMA_KEEP_ALIVE": "5m", "OLLAMA_CONTEXT_LENGTH": "300", "OLLAMA_NUM_PARALLEL": "4"}, "", "+from the environment"),
    ({"OLLAMA_MAX_LOADED_MODELS": "2"}, "", "+not read from the environment: OLLAMA_MAX_LOADED_MODELS"),
    ({"VLLM_API_KEY": "secret-of-16-letters", "VLLM_LOGGING_LEVEL": "DEBUG"}, "--host 0.0.0.0", "+from the environment: VLLM_"),
    ({"LLAMA_ARG_LORA": "l.gguf"}, "", "+environment: --lora: adapters are not supported"),
    ({"OLLAMA_CONTEXT_LENGTH": "long"}, "", "max-context: must be a whole number"),
]


def check(options, environment=None):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("LLAMA_", "OLLAMA_", "VLLM_"))}
    return subprocess.run([program("weftd"), "-m", tiny_model(), *options.split(), "--check-config"],
                          capture_output=True, text=True, timeout=60, env={**clean, **(environment or {})})


def expect(result, outcome):
    if outcome == "" or outcome.startswith("+"):
        assert result.returncode == 0 and outcome[1:] in result.stderr, result
    else:
        assert result.returncode == 78 and outcome in result.stderr, result


def test_lines_of_llama_server():
    for options, outcome in LLAMA_SERVER:
        expect(check(options), outcome)


def test_lines_of_vllm():
    for options, outcome in VLLM:
        expect(check(options), outcome)


def test_environments():
    for environment, options, outcome in ENVIRONMENTS:
        expect(check(options, environment), outcome)


main(globals())
