"""Command lines of llama-server, vLLM and Ollama's environment, as users and scripts type them: each starts, or the
message says what to type instead."""
import os
import subprocess

from weftd import main, program, tiny_model

OPEN = "add --api-key KEY, or --anonymous yes to serve everyone"
PULL = "has not been downloaded: run weftctl pull hf:"
GGUF = "the model file decides it"

# (the options behind -m FILE; "": it starts; "+TEXT": it starts and says TEXT; else the remedy)
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
    ("-ctk q5_1", "use --kv-type-k f16|q8_0|q4_0"),
    ("--tools all", "tools are run by clients"),
    ("--no-such-option 3", "unknown option (weftd --help lists all)"),
]
# Whole lines of scripts and of reports to llama.cpp and ik_llama.cpp (2024 to 2026), without their model files.
SCRIPTS = [
    ("--port 8012 -ngl 99 -fa -ub 1024 -b 1024 -dt 0.1 --ctx-size 0 --cache-reuse 256", ""),
    ("-hf ggml-org/Qwen2.5-Coder-3B-Q8_0-GGUF --port 8012 -ngl 99 -fa -ub 1024 -b 1024 -dt 0.1 --ctx-size 0",
     PULL + "ggml-org/Qwen2.5-Coder-3B-Q8_0-GGUF"),
    ("--keep -1 --predict -1 --ctx-size 2048 --batch-size 2048 -ngl 20 --threads 4 --threads-batch 4 --mlock --flash-attn "
     "--repeat-last-n 64 --repeat-penalty 1.1 --mirostat 0 --top-k 40 --top-p 0.9 --min-p 0.0 --no-escape --host 0.0.0.0", OPEN),
    ("--keep -1 -ngl 20 --seed -1 --color --interactive -cnv --chat-template chatml", "weftctl chat asks in the terminal"),
    ("--alias qwen2.5-coder-7b -ngl 24 -c 4096 -t 8 --host 127.0.0.1 --port 8080 --api-key mylocalkey", "+too short"),
    ("--host 127.0.0.1 --port 18999 --n-gpu-layers -1 --jinja -c 32768 -ot .ffn_.*_exps.=CPU --cache-type-k q8_0",
     "+--host-experts N leaves those of N layers there"),
    ("--alias GLM-4.5:q4 --no-webui --numa numactl --threads 32 --ctx-size 131072 --n-gpu-layers 94 "
     "-ot blk\\.(3|4|5|6|7)\\.ffn_.*=CUDA0 -ot exps=CPU -ub 4096 -b 4096 --seed 3407 --temp 0.6 --top-p 1.0 --log-colors "
     "--flash-attn --host 0.0.0.0 --port 11434", OPEN),
    ("--alias Laguna --jinja --threads 9 --threads-http 4 --flash-attn on --no-context-shift --temp 1.0 --min-p 0.01 "
     "--ctx-size 65536 --n-predict 65536 --host 127.0.0.1 --no-mmap --n-gpu-layers 999 --n-cpu-moe 44 --reasoning on "
     '--chat-template-kwargs {"preserve_thinking":true} --batch_size 1024 --ubatch_size 1024', ""),
    ("--ctx-size 101072 -ngl 99 --override-tensor .*_exps\\..*=CPU --threads 28 --threads-batch 28 -fa -ser 30,1 -fmoe --jinja",
     "all experts that the model picks are computed"),
    ("-fa --temp 0.6 --top-p 0.95 -s 3047 -t 62 -nkvo -c 163840 -ngl 0 -mla 2 -fmoe -np 4 --mlock -a DeepSeek-R1:671B", ""),
    ("-c 0 -fa --jinja --reasoning-format none -ngl 10", ""),
    ("-c 20000 -ngl 99 --jinja --host 0.0.0.0 -fa", OPEN),
    ("--chat-template chatml --host 127.0.0.1 --jinja --no-mmap -ncmoe 12 --offline --alias ggml-org/gpt-oss-20b-GGUF", ""),
    ("--host 0.0.0.0 --port 11011 --offline --models-dir /tmp --models-preset /tmp/presets.ini", "--models DIR with presets"),
    ("-ngl auto --sleep-idle-seconds 600 --reasoning on --kv-offload --parallel 2 --slots --metrics --slot-save-path /save",
     "--kv-disk FOLDER keeps prefixes over restarts"),
    ("-c 8000 --port 1280 --api-key 123 -np 1", "+too short"),
    ("--ctx-size 4096 --threads 8 -ngl 128 --port 8080 --mlock --no-mmap", ""),
    ("--host 0.0.0.0 --port 8080 --ctx-size 4096 -t 4 --parallel 1 --metrics", OPEN),
    ("--port 8081 -c 8192 -ngl 99 -t 8 --parallel 1 --metrics -ctk q4_0 -ctv q4_0 -fa on", ""),
    ("--port 8080 -ngl 99 -fa on -c 16384 --temp 0.7 --top-p 0.95 --top-k 20 --min-p 0 --jinja -ngld 999 -np 1", ""),
    ("-c 8192 -ngl 999 --no-webui --port 8099", ""),
    ("--n-gpu-layers 35 --ctx-size 131072 --parallel 1 --cont-batching --metrics", ""),
    ("--temp 1.0 --top-p 0.95 --presence-penalty 1.5 --min-p 0.00 --spec-type draft-mtp --spec-draft-n-max 2", ""),
    ("-c 262144 -ngl 99 --split-mode layer --tensor-split 16,12,12 --main-gpu 0 --prio 3 --min_p 0.00 --kv-unified",
     "--devices 0,1 names them"),
    ("--no-mmproj -c 8192 --port 8080", ""),
    ("--rerank --port 8080", ""),
    ("--n-gpu-layers 32 --ctx-size 16384 --pooling mean --slots --jinja -fa --embeddings", ""),
    ("-ngl 33 -p Prompt: -n 256", "weftctl chat asks in the terminal"),
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
    ("serve Qwen/Qwen3-8B", "serve: not an option; weftd serves at once"),
    ("pull x", "pull: a command of weftctl, not an option"),
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


def test_lines_of_scripts():
    for options, outcome in SCRIPTS:
        expect(check(options), outcome)


def test_lines_of_vllm():
    for options, outcome in VLLM:
        expect(check(options), outcome)


def test_environments():
    for environment, options, outcome in ENVIRONMENTS:
        expect(check(options, environment), outcome)


main(globals())
