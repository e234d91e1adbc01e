#include "daemon/front/llama_options.h"

#include <string.h>

#include "base/util.h"

#define ADAPTER "adapters are not supported: merge it into the model"
#define FILE_ROPE "the model file's own values are used: leave it out"
#define ROUTER "models come from folders: --models DIR with presets, --models-dir DIR with files"
#define SPLIT "devices share a model evenly: --devices 0,1 names them"
#define IN_REQUEST "send it in requests"
#define CLIENT_TOOLS "tools are run by clients"
#define NO_SAMPLER "this sampler is not implemented: leave it out"

#define WHOLE_CONTEXT "penalties look at the whole context"
#define GGUF "the model file decides it"
#define TERMINAL "weftctl chat asks in the terminal"

static const struct llama_option table[] = {
    /* the model */
    {"-m", LLAMA_VALUE, "model"},
    {"-hf,-hfr,--hf-repo", LLAMA_REPO, NULL},
    {"-hff,--hf-file", LLAMA_REFUSED_VALUE, "name the file behind the repository: -hf REPO:QUANT"},
    {"-hft,--hf-token", LLAMA_REFUSED_VALUE, "set HF_TOKEN for weftctl pull"},
    {"-mu,--model-url", LLAMA_REFUSED_VALUE, "download the file, then give --model FILE"},
    {"-dr,--docker-repo", LLAMA_REFUSED_VALUE, "weftctl pull hf:OWNER/REPO downloads models"},
    {"--offline", LLAMA_HERE, NULL},
    {"-a,--alias", LLAMA_ALIAS, NULL},
    {"-mm", LLAMA_VALUE, "mmproj"},
    {"--mmproj-url,-mmu", LLAMA_REFUSED_VALUE, "download the file, then give --mmproj FILE"},
    {"--image-min-tokens", LLAMA_VALUE, "picture-min-tokens"},
    {"--image-max-tokens", LLAMA_VALUE, "picture-max-tokens"},
    {"--no-mmproj,--no-mmproj-auto", LLAMA_FLAG, "mmproj=none"},
    {"--no-mmproj-offload,--mmproj-auto", LLAMA_HERE, NULL},
    {"--lora,--control-vector", LLAMA_REFUSED_VALUE, ADAPTER},
    {"--lora-scaled,--control-vector-scaled", LLAMA_REFUSED_VALUE, ADAPTER},
    {"--lora-init-without-apply", LLAMA_REFUSED, ADAPTER},
    {"--rope-scaling,--rope-scale,--rope-freq-base", LLAMA_REFUSED_VALUE, FILE_ROPE},
    {"--rope-freq-scale,--yarn-orig-ctx,--yarn-ext-factor", LLAMA_REFUSED_VALUE, FILE_ROPE},
    {"--yarn-attn-factor,--yarn-beta-slow,--yarn-beta-fast", LLAMA_REFUSED_VALUE, FILE_ROPE},
    {"--models-preset", LLAMA_REFUSED_VALUE, ROUTER},
    {"--models-max", LLAMA_REFUSED_VALUE,
     "--models-memory SIZE limits the memory of loaded models"},
    {"--models-autoload", LLAMA_HERE, NULL},
    {"--no-models-autoload", LLAMA_REFUSED, "models are loaded when a request names them"},
    {"--sleep-idle-seconds", LLAMA_COUNT, "keep-alive-s"},
    /* context, batches, memory */
    {"-c,--ctx-size", LLAMA_CONTEXT, NULL},
    {"-np,--parallel", LLAMA_PARALLEL, NULL},
    {"-kvu,--kv-unified", LLAMA_UNIFIED, NULL},
    {"-no-kvu,--no-kv-unified", LLAMA_HERE, NULL},
    {"-n,--predict,--n-predict", LLAMA_COUNT, "default-max-tokens"},
    {"-b,--batch-size", LLAMA_HERE_VALUE, NULL},
    {"-ub,--ubatch-size", LLAMA_VALUE, "max-batch-rows"},
    {"-t,--threads", LLAMA_COUNT, "threads"},
    {"-tb,--threads-batch,--threads-http,--prio,--prio-batch,--poll", LLAMA_HERE_VALUE, NULL},
    {"--poll-batch,--defrag-thold,-dt", LLAMA_HERE_VALUE, NULL},
    {"-C,--cpu-mask,-Cr,--cpu-range,--cpu-strict", LLAMA_NOTED_VALUE,
     "taskset and numactl bind weftd to cores"},
    {"-Cb,--cpu-mask-batch,-Crb,--cpu-range-batch,--cpu-strict-batch", LLAMA_NOTED_VALUE,
     "taskset and numactl bind weftd to cores"},
    {"--numa", LLAMA_NOTED_VALUE, "numactl binds weftd to a node"},
    {"-ctk,--cache-type-k", LLAMA_KV_TYPE, "kv-type-k"},
    {"-ctv,--cache-type-v", LLAMA_KV_TYPE, "kv-type-v"},
    {"-cram,--cache-ram", LLAMA_CACHE_MIB, NULL},
    {"--slot-save-path", LLAMA_REFUSED_VALUE, "--kv-disk FOLDER keeps prefixes over restarts"},
    {"-fa,--flash-attn", LLAMA_HERE_SWITCH, NULL},
    {"--mlock,--mmap,--no-mmap,--swa-full,-cb,--cont-batching,--repack", LLAMA_HERE, NULL},
    {"-nocb,--no-cont-batching,--no-repack,-nr,--no-host,--op-offload", LLAMA_HERE, NULL},
    {"--no-op-offload,-kvo,--kv-offload,-nkvo,--no-kv-offload,--warmup", LLAMA_HERE, NULL},
    {"--no-warmup,--no-context-shift,--cache-prompt,--no-cache-prompt", LLAMA_HERE, NULL},
    {"--check-tensors,--no-direct-io,-ndio,--direct-io,-dio,--clear-idle", LLAMA_HERE, NULL},
    {"--cache-idle-slots,--no-cache-idle-slots", LLAMA_HERE, NULL},
    {"--cache-reuse,--keep,-sps,--slot-prompt-similarity", LLAMA_HERE_VALUE, NULL},
    {"--cache-reuse-hybrid,--cache-reuse-hybrid-min-share", LLAMA_HERE_VALUE, NULL},
    {"-gan,--grp-attn-n,-gaw,--grp-attn-w", LLAMA_REFUSED_VALUE, FILE_ROPE},
    {"--ctx-checkpoints,--swa-checkpoints,-ctxcp", LLAMA_HERE_VALUE, NULL},
    {"--context-shift", LLAMA_REFUSED, "a prompt that does not fit is refused, never cut"},
    /* devices */
    {"-ngl,--gpu-layers,--n-gpu-layers", LLAMA_LAYERS, NULL},
    {"-ncmoe,--n-cpu-moe", LLAMA_VALUE, "host-experts"},
    {"-cmoe,--cpu-moe", LLAMA_FLAG, "host-experts=1000000"},
    {"-cmoed,--cpu-moe-draft,--spec-draft-cpu-moe", LLAMA_HERE, NULL},
    {"-ncmoed,--n-cpu-moe-draft,--spec-draft-n-cpu-moe", LLAMA_HERE_VALUE, NULL},
    /* Options of ik_llama.cpp. */
    {"-fmoe,--fused-moe,-nofmoe,-fmla,-rtr,--run-time-repack,-ger,-muge", LLAMA_HERE, NULL},
    {"-mla,--mla-use,-amb,--attention-max-batch", LLAMA_HERE_VALUE, NULL},
    {"-ser,--smart-expert-reduction", LLAMA_REFUSED_VALUE,
     "all experts that the model picks are computed: leave it out"},
    {"-dev,--device", LLAMA_DEVICES, "--devices 0,1 names CUDA devices, --backend cpu none"},
    {"-sm,--split-mode", LLAMA_SPLIT, NULL},
    {"-mg,--main-gpu", LLAMA_VALUE, "devices"},
    {"-ts,--tensor-split", LLAMA_REFUSED_VALUE, SPLIT},
    {"-ot,--override-tensor", LLAMA_TENSORS,
     "--device-layers N leaves the FFNs of further layers in host memory, --host-experts N "
     "experts"},
    {"--rpc", LLAMA_REFUSED_VALUE, "weftd uses one machine"},
    {"-fit,--fit", LLAMA_HERE_SWITCH, NULL},
    {"-fitt,--fit-target,-fitc,--fit-ctx", LLAMA_HERE_VALUE, NULL},
    {"--list-devices", LLAMA_REFUSED, "nvidia-smi lists them"},
    /* drafting */
    {"-md,--model-draft,--spec-draft-model", LLAMA_VALUE, "draft-model"},
    {"--draft,--draft-n,--draft-max,--spec-draft-n-max", LLAMA_MOST, "max-draft"},
    {"--draft-min,--draft-n-min,--spec-draft-n-min,--spec-draft-p-min", LLAMA_HERE_VALUE, NULL},
    {"--draft-p-min,-cd,--ctx-size-draft,-ngld,--n-gpu-layers-draft", LLAMA_HERE_VALUE, NULL},
    {"--gpu-layers-draft,--spec-draft-ngl,--spec-type", LLAMA_HERE_VALUE, NULL},
    {"--spec-synth-len,--spec-synth-rates", LLAMA_REFUSED_VALUE, "drafts are real: leave it out"},
    {"-hfd,-hfrd,--hf-repo-draft,--spec-draft-hf", LLAMA_REFUSED_VALUE,
     "download it with weftctl pull hf:REPO, then give --draft-model NAME"},
    /* sampling */
    {"--temp,--temperature", LLAMA_SAMPLING, "temperature"},
    {"--top-k", LLAMA_SAMPLING, "top_k"},
    {"--top-p", LLAMA_SAMPLING, "top_p"},
    {"--min-p", LLAMA_SAMPLING, "min_p"},
    {"--top-nsigma,--top-n-sigma", LLAMA_SAMPLING, "top_n_sigma"},
    {"--typical,--typical-p", LLAMA_SAMPLING, "typical_p"},
    {"--xtc-probability", LLAMA_SAMPLING, "xtc_probability"},
    {"--xtc-threshold", LLAMA_SAMPLING, "xtc_threshold"},
    {"--repeat-penalty", LLAMA_SAMPLING, "repetition_penalty"},
    {"--presence-penalty", LLAMA_SAMPLING, "presence_penalty"},
    {"--frequency-penalty", LLAMA_SAMPLING, "frequency_penalty"},
    {"--dry-multiplier", LLAMA_SAMPLING, "dry_multiplier"},
    {"--dry-base", LLAMA_SAMPLING, "dry_base"},
    {"--dry-allowed-length", LLAMA_SAMPLING, "dry_allowed_length"},
    {"--dry-penalty-last-n", LLAMA_SAMPLING, "dry_penalty_last_n"},
    {"-s,--seed", LLAMA_SAMPLING, "seed"},
    {"-bs,--backend-sampling", LLAMA_HERE, NULL},
    {"--ignore-eos", LLAMA_REFUSED, IN_REQUEST ": \"ignore_eos\": true"},
    {"--repeat-last-n", LLAMA_NOTED_VALUE, WHOLE_CONTEXT},
    {"--samplers,--sampling-seq,--sampler-seq", LLAMA_NOTED_VALUE,
     "the order of samplers is fixed"},
    {"--mirostat,--dynatemp-range,--adaptive-target", LLAMA_OFF, NO_SAMPLER},
    {"--mirostat-lr,--mirostat-ent,--dynatemp-exp,--adaptive-decay", LLAMA_HERE_VALUE, NULL},
    {"-l,--logit-bias,--grammar,--grammar-file,-j,--json-schema", LLAMA_REFUSED_VALUE, IN_REQUEST},
    {"-jf,--json-schema-file", LLAMA_REFUSED_VALUE, IN_REQUEST},
    /* templates */
    {"--jinja,--no-jinja", LLAMA_HERE, NULL},
    {"--chat-template-file", LLAMA_VALUE, "chat-template"},
    {"-rea", LLAMA_VALUE, "reasoning"},
    {"--reasoning-budget", LLAMA_BUDGET, NULL},
    {"-sys", LLAMA_REFUSED_VALUE, "--system-prompt FILE reads it from a file"},
    {"--prefill-assistant,--no-prefill-assistant", LLAMA_HERE, NULL},
    {"-p,--prompt,-f,--file", LLAMA_REFUSED_VALUE, TERMINAL},
    {"-cnv,--conversation,-i,--interactive,--interactive-first", LLAMA_REFUSED, TERMINAL},
    {"--color,-co,-st,--single-turn", LLAMA_REFUSED, TERMINAL},
    {"--skip-chat-parsing", LLAMA_REFUSED, "tool calls and reasoning are always separated"},
    /* the server */
    {"--host", LLAMA_HOST, NULL},
    {"--port", LLAMA_PORT, NULL},
    {"--reuse-port", LLAMA_HERE, NULL},
    {"--api-key", LLAMA_KEYS, NULL},
    {"--api-key-file", LLAMA_VALUE, "api-keys"},
    {"--ssl-key-file", LLAMA_VALUE, "tls-key"},
    {"--ssl-cert-file", LLAMA_CERTIFICATE, NULL},
    {"-to,--timeout", LLAMA_HERE_VALUE, NULL},
    {"--slots,--metrics,--props,--embedding,--embeddings", LLAMA_HERE, NULL},
    {"--rerank,--reranking,--webui,--ui", LLAMA_HERE, NULL},
    {"--no-slots", LLAMA_FLAG, "slots=no"},
    {"--no-webui,--no-ui", LLAMA_FLAG, "web-page=no"},
    {"--path,--api-prefix", LLAMA_REFUSED_VALUE, "put a proxy in front of weftd for other paths"},
    {"--media-path,--webui-config,--webui-config-file", LLAMA_REFUSED_VALUE,
     "weft has no such feature: leave it out"},
    {"--tools,--tools-runtime", LLAMA_REFUSED_VALUE, CLIENT_TOOLS},
    {"--mcp-servers-config,--mcp-servers-json", LLAMA_REFUSED_VALUE, CLIENT_TOOLS},
    {"--ui-mcp-proxy,--webui-mcp-proxy", LLAMA_REFUSED, CLIENT_TOOLS},
    /* the log */
    {"-v,--verbose,--log-verbose", LLAMA_FLAG, "log-level=debug"},
    {"-lv,--verbosity,--log-verbosity", LLAMA_HERE_VALUE, NULL},
    {"--log-disable", LLAMA_FLAG, "log-level=error"},
    {"--log-file", LLAMA_NOTED_VALUE, "the log goes to stderr: 2>FILE writes it to a file"},
    {"--log-colors", LLAMA_HERE_SWITCH, NULL},
    {"--log-prefix,--log-timestamps,--no-log-prefix,--no-log-timestamps", LLAMA_HERE, NULL},
    {"--perf,--no-perf,-e,--escape,--no-escape,-sp,--special", LLAMA_HERE, NULL},
    {"--verbose-prompt,--display-prompt,--no-display-prompt", LLAMA_HERE, NULL},
    /* models by name */
    {"--embd-gemma-default", LLAMA_PRESET, "ggml-org/embeddinggemma-300M-qat-q4_0-GGUF 8011"},
    {"--fim-qwen-1.5b-default", LLAMA_PRESET, "ggml-org/Qwen2.5-Coder-1.5B-Q8_0-GGUF 8012"},
    {"--fim-qwen-3b-default", LLAMA_PRESET, "ggml-org/Qwen2.5-Coder-3B-Q8_0-GGUF 8012"},
    {"--fim-qwen-7b-default,--fim-qwen-7b-spec", LLAMA_PRESET,
     "ggml-org/Qwen2.5-Coder-7B-Q8_0-GGUF 8012"},
    {"--fim-qwen-14b-spec", LLAMA_PRESET, "ggml-org/Qwen2.5-Coder-14B-Q8_0-GGUF 8012"},
    {"--fim-qwen-30b-default", LLAMA_PRESET,
     "ggml-org/Qwen3-Coder-30B-A3B-Instruct-Q8_0-GGUF 8012"},
    {"--gpt-oss-20b-default", LLAMA_PRESET, "ggml-org/gpt-oss-20b-GGUF 8013"},
    {"--gpt-oss-120b-default", LLAMA_PRESET, "ggml-org/gpt-oss-120b-GGUF 8013"},
    {"--vision-gemma-4b-default", LLAMA_PRESET, "ggml-org/gemma-3-4b-it-qat-GGUF 8014"},
    {"--vision-gemma-12b-default", LLAMA_PRESET, "ggml-org/gemma-3-12b-it-qat-GGUF 8014"},
};

/* Options of vLLM that llama-server does not have. */
static const struct llama_option vllm[] = {
    {"--max-model-len", LLAMA_LENGTH, "max-context"},
    {"--max-num-seqs", LLAMA_MOST, "max-seqs"},
    {"--max-num-batched-tokens", LLAMA_MOST, "max-batch-rows"},
    {"--gpu-memory-utilization,--kv-cache-memory-bytes", LLAMA_NOTED_VALUE,
     "the KV cache takes what the weights leave; --kv-memory SIZE sets its size"},
    {"--kv-cache-dtype", LLAMA_CACHE_TYPE, "kv-type"},
    {"--swap-space,--kv-offloading-size", LLAMA_GIB, "host-kv-memory"},
    {"--cpu-offload-gb", LLAMA_NOTED_VALUE,
     "what does not fit is left in host memory; --device-layers and --host-experts set how much"},
    {"--block-size,--num-gpu-blocks-override,--max-seq-len-to-capture", LLAMA_HERE_VALUE, NULL},
    {"--enable-prefix-caching,--enable-chunked-prefill,--async-scheduling", LLAMA_HERE_SWITCH,
     NULL},
    {"--no-enable-prefix-caching,--no-enable-chunked-prefill", LLAMA_HERE, NULL},
    {"--no-async-scheduling,--enforce-eager,--no-enforce-eager", LLAMA_HERE, NULL},
    {"--trust-remote-code,--disable-custom-all-reduce,--enable-sleep-mode", LLAMA_HERE, NULL},
    {"--disable-log-requests,--disable-log-stats,--enable-log-requests", LLAMA_HERE, NULL},
    {"--no-enable-log-requests,--disable-frontend-multiprocessing", LLAMA_HERE, NULL},
    {"--disable-uvicorn-access-log,--enable-request-id-headers", LLAMA_HERE, NULL},
    {"--enable-prompt-tokens-details,--enable-server-load-tracking", LLAMA_HERE, NULL},
    {"--enable-auto-tool-choice,--enable-reasoning,--enable-force-include-usage", LLAMA_HERE, NULL},
    {"--tool-call-parser,--reasoning-parser,--chat-template-content-format", LLAMA_HERE_VALUE,
     NULL},
    {"--tool-parser-plugin,--guided-decoding-backend,--structured-outputs-config", LLAMA_HERE_VALUE,
     NULL},
    {"--scheduling-policy,--num-scheduler-steps,--distributed-executor-backend", LLAMA_HERE_VALUE,
     NULL},
    {"--compilation-config,-O,--optimization-level,--attention-backend", LLAMA_HERE_VALUE, NULL},
    {"--limit-mm-per-prompt,--mm-processor-kwargs,--mm-processor-cache-gb", LLAMA_HERE_VALUE, NULL},
    {"--api-server-count,--task,--runner,--convert,--max-logprobs", LLAMA_HERE_VALUE, NULL},
    {"--dtype,--quantization,-q,--load-format,--config-format", LLAMA_NOTED_VALUE, GGUF},
    {"--tokenizer,--tokenizer-mode", LLAMA_NOTED_VALUE, GGUF},
    {"--hf-overrides", LLAMA_REFUSED_VALUE, FILE_ROPE},
    {"--revision,--tokenizer-revision,--code-revision", LLAMA_REFUSED_VALUE,
     "weftctl pull hf:OWNER/REPO downloads the newest one: leave it out"},
    {"--download-dir", LLAMA_NOTED_VALUE, "WEFT_MODELS is the folder of weftctl pull"},
    {"--generation-config", LLAMA_NOTED_VALUE,
     "--sampling sets defaults; --sampling openai is vLLM's \"vllm\""},
    {"--override-generation-config", LLAMA_REFUSED_VALUE,
     "--sampling temperature=T,top_p=P sets defaults"},
    {"--default-chat-template-kwargs", LLAMA_VALUE, "chat-template-kwargs"},
    {"--language-model-only", LLAMA_FLAG, "mmproj=none"},
    {"--speculative-config", LLAMA_REFUSED_VALUE,
     "--draft-model FILE names a draft model, MTP block or drafter; n-gram drafts need no option"},
    {"--tensor-parallel-size,-tp,--pipeline-parallel-size,-pp", LLAMA_SHARDS, NULL},
    {"--data-parallel-size,-dp", LLAMA_ONE, "start one weftd for each, behind a router"},
    {"--enable-expert-parallel", LLAMA_HERE, NULL},
    {"--enable-lora", LLAMA_REFUSED, ADAPTER},
    {"--lora-modules,--max-loras,--max-lora-rank", LLAMA_REFUSED_VALUE, ADAPTER},
    {"--served-model-name", LLAMA_SERVED, NULL},
    {"--uvicorn-log-level", LLAMA_LEVEL, NULL},
    {"--allowed-origins", LLAMA_REFUSED_VALUE, "--cors-origins https://chat.example names them"},
    {"--root-path,--middleware", LLAMA_REFUSED_VALUE, "put a proxy in front of weftd"},
    {"--ssl-keyfile", LLAMA_VALUE, "tls-key"},
    {"--ssl-certfile", LLAMA_CERTIFICATE, NULL},
    {"--kv-transfer-config", LLAMA_REFUSED_VALUE,
     "--host-kv-memory SIZE keeps prefixes in memory, --kv-disk FOLDER on a disk"},
    {"--kv-events-config", LLAMA_REFUSED_VALUE, "--kv-events tcp://HOST:5557"},
    {"--otlp-traces-endpoint", LLAMA_VALUE, "otlp-endpoint"},
};

/* Returns true if @a and @b are equal when '_' counts as '-', as llama-server reads them. */
static bool llama_options_is_same(const char *a, const char *b, size_t len) {
    for (size_t i = 0; i < len; i++)
        if (a[i] != b[i] && (a[i] != '-' || b[i] != '_'))
            return false;
    return true;
}

/* Returns true if @name is one of @names. */
static bool is_among(const char *names, const char *name, size_t len) {
    for (; *names; names += strcspn(names, ","), names += *names == ',')
        if (strcspn(names, ",") == len && llama_options_is_same(names, name, len))
            return true;
    return false;
}

static const struct llama_option *llama_options_find(const struct llama_option *rows, size_t n,
                                                     const char *name, size_t len) {
    for (size_t i = 0; i < n; i++)
        if (is_among(rows[i].names, name, len))
            return &rows[i];
    return NULL;
}

const struct llama_option *llama_option_find(const char *name, size_t len) {
    const struct llama_option *o = llama_options_find(table, ARRAY_SIZE(table), name, len);

    return o ? o : llama_options_find(vllm, ARRAY_SIZE(vllm), name, len);
}

bool llama_option_has_no_value(const struct llama_option *o) {
    switch (o->kind) {
    case LLAMA_FLAG:
    case LLAMA_HERE:
    case LLAMA_REFUSED:
    case LLAMA_UNIFIED:
    case LLAMA_PRESET:
        return true;
    default:
        return false;
    }
}
