/*
 * The options of weftd, one row each. The row names the field that it sets, in struct config or in
 * the options of the module that uses it, which config.h embeds; type and range of the field are
 * checked when this file is compiled. This table is the source of every list of options: --help,
 * --print-config, the installed weft.conf, weft.conf(5) and the completion of bash.
 */

#include <assert.h>

#include "daemon/config/config.h"

#define KiB (1ull << 10)
#define MiB (1ull << 20)
#define GiB (1ull << 30)

#define FIELD(f) ((struct config *)0)->f
#define AT(f) .offset = offsetof(struct config, f), .size = sizeof(FIELD(f))
#define MAX_OF(f) (UINT64_MAX >> (64 - 8 * sizeof(FIELD(f))))
/* Is 0; does not compile unless @condition holds. */
#define CHECKED(condition, text)                                                                   \
    (0 * sizeof(struct {                                                                           \
         static_assert(condition, text);                                                           \
         char c;                                                                                   \
     }))
#define IS(f, type) CHECKED(__builtin_types_compatible_p(__typeof__(FIELD(f)), type), "type of " #f)

#define ROW(section_, key_, type_, f, initial_, help_)                                             \
    .section = section_, .key = key_, .type = type_, AT(f), .initial = initial_, .help = help_
#define STRING(section, key, f, initial, help)                                                     \
    { ROW(section, key, OPTION_STRING, f, initial, help), .min = IS(f, char *) }
/* A string whose value is one of a few words. */
#define NAME(section, key, f, initial, words, help)                                                \
    {                                                                                              \
        ROW(section, key, OPTION_STRING, f, initial, help), .choices = words,                      \
                                                            .min = IS(f, const char *)             \
    }
#define LIST(section, key, f, initial, help)                                                       \
    { ROW(section, key, OPTION_LIST, f, initial, help), .min = IS(f, char * [CONFIG_LIST_MAX + 1]) }
#define CHOICE(section, key, f, initial, words, reloads_, help)                                    \
    { ROW(section, key, OPTION_CHOICE, f, initial, help), .choices = words, .reloads = reloads_ }
#define NUMBER(section, key, type, f, initial, least, most, help)                                  \
    {                                                                                              \
        ROW(section, key, type, f, initial, help),                                                 \
            .min = (least), .max = (most) + CHECKED((uint64_t)(most) <= MAX_OF(f), "range of " #f) \
    }
#define UINT(section, key, f, initial, least, most, help)                                          \
    NUMBER(section, key, OPTION_UINT, f, initial, least, most, help)
/* A UINT for which @word stands for the largest number. */
#define UINT_OR(section, key, f, initial, word, help)                                              \
    { ROW(section, key, OPTION_UINT, f, initial, help), .choices = word, .max = MAX_OF(f) }
#define SIZE(section, key, f, initial, least, most, help)                                          \
    NUMBER(section, key, OPTION_SIZE, f, initial, least, most, help)
#define BOOL(section, key, f, initial, help)                                                       \
    { ROW(section, key, OPTION_BOOL, f, initial, help), .min = IS(f, bool), .max = 1 }

const struct option config_table[] = {
    STRING(
        "model", "model", model, "",
        "The GGUF file to serve (for a split model, any shard), a folder with one model, or a name "
        "of weftctl models."),
    STRING("model", "model-name", model_name, "",
           "The name that clients use; empty: the file's name without .gguf."),
    STRING("model", "chat-template", chat_template, "",
           "A file with a chat template, or the name of a built-in template (chatml, llama3, ...), "
           "to use instead of the model's own; a model without a template gets chatml."),
    STRING("model", "system-prompt", system_prompt, "",
           "A file with the system message for chats that have no system message."),
    BOOL("model", "any-model-name", api.any_model_name, "yes",
         "Answer requests whatever model they name; no: requests for an unknown name get 404."),
    LIST("model", "aliases", aliases, "",
         "Further names of the model; a trailing * matches every ending."),
    LIST("model", "tags", tags, "", "Words that the list of models tells clients of the model."),
    STRING("model", "models", models, "",
           "A folder of presets, NAME.conf. Each preset defines a further model by keys of [model] "
           "and [engine] and is loaded when a request names it; its key model may be a name in "
           "models-dir."),
    STRING("model", "models-dir", models_dir, "",
           "A folder whose GGUF files are served by name and loaded when a request names them; "
           "auto: the files of weftctl pull, of the cache of the Hugging Face hub, of LM Studio "
           "and of Ollama."),
    SIZE("model", "models-memory", models_memory, "0", 0, 65536 * GiB,
         "Memory for weights, buffers and KV cache of all models loaded at the same time; 0: nine "
         "tenths of the memory that is free at the start. The least recently used model is "
         "unloaded first."),
    UINT("model", "keep-alive-s", keep_alive_s, "0", 0, 31536000,
         "Seconds without a request after which a model is unloaded; 0: models are unloaded only "
         "when another model needs the memory."),
    BOOL("model", "pinned", pinned, "no",
         "Load the model at the start and never unload it for other models."),
    LIST("model", "sampling", sampling, "",
         "Sampling parameters for requests that leave them out: NAME=VALUE,... (temperature, "
         "top_p, ..., seed); others keep the model's values. openai: temperature 1, no top_k, "
         "top_p or min_p."),
    CHOICE("model", "reasoning", reasoning, "auto", "auto|off|on|template", false,
           "Turn the model's reasoning on or off for requests that do not set it; auto: on if the "
           "model can reason; template: as its template has it when it is told nothing."),
    STRING(
        "model", "chat-template-kwargs", template_kwargs, "",
        "Variables of the chat template for requests that do not set them: a JSON object such as "
        "{\"enable_thinking\": false}."),
    CHOICE("model", "reasoning-format", reasoning_format, "auto",
           "auto|none|deepseek|deepseek-legacy", false,
           "auto: answers have the reasoning apart from the content; none: it stays in the content "
           "of chats, between <think> and </think> or the model's own marks. A request's "
           "reasoning_format takes precedence."),
    {ROW("model", "loop-breaker", OPTION_UINT, loop_tokens, "auto",
         "End an output whose last N tokens are a loop, that is one block of up to N / 4 tokens, "
         "or whose last 4 N, 16 N, ... tokens are one of longer blocks; if the loop is in the "
         "reasoning, it is closed and the answer follows. auto: 256 in chats if the model has less "
         "than 2 billion parameters or its file less than 3.3 bits a weight; 0: off."),
     .choices = "auto", .max = LOOPS_AUTO + CHECKED(LOOPS_AUTO <= MAX_OF(loop_tokens), "")},
    CHOICE("model", "pooling", pooling, "model", "model|mean|cls|last|none", false,
           "Pooling of token states for embeddings in requests that do not set it; model: the "
           "pooling in the model file."),
    STRING("model", "mmproj", mmproj, "",
           "The projector file with the model's image encoder; empty: the mmproj*.gguf beside the "
           "model, or else the encoder in its folder, if there is one; none: the model takes no "
           "pictures."),
    UINT("model", "picture-min-tokens", picture_min_tokens, "0", 0, 65536,
         "Fewest tokens of a picture: smaller pictures are enlarged; 0: the model's own limit."),
    CHOICE("model", "picture-fit", picture_pads, "stretch", "stretch|pad", false,
           "How a picture is fitted to the sides that the model takes. stretch: as in training; "
           "pad: the aspect ratio is kept and black borders are added, as in llama.cpp."),
    CHOICE("model", "picture-background", picture_background, "white", "white|grey|black", false,
           "The colour behind transparent pixels of pictures."),
    STRING("model", "draft-model", draft_model, "",
           "A small model with the same vocabulary that drafts for speculative decoding, or a file "
           "with the model's MTP block, assistant or block drafter (DFlash); the output does not "
           "change."),

    LIST(
        "listen", "listen", listen, "127.0.0.1:8080",
        "Addresses to serve HTTP on, separated by commas: ADDRESS:PORT, [IPv6]:PORT, unix:PATH, or "
        "tls:ADDRESS:PORT for HTTPS."),
    STRING("listen", "tls-certificate", tls_certificate, "",
           "A PEM file with the certificate chain for tls: addresses, read again on SIGHUP."),
    STRING("listen", "tls-key", tls_key, "",
           "A PEM file with the key of tls-certificate, read again on SIGHUP; other users must not "
           "be able to read it."),
    BOOL("listen", "web-page", api.web_page, "yes",
         "Serve the web page (chat, live view) to browsers at /; if api-keys is set, the page asks "
         "its user for a key."),
    BOOL("listen", "slots", api.slots, "yes",
         "Serve llama-server's list of requests at /slots; no: 501."),
    LIST("listen", "allowed-hosts", hosts, "",
         "Names accepted in the Host header besides loopback names; *: every name."),
    LIST("listen", "cors-origins", cors_origins, "",
         "Origins whose pages may use the server besides loopback ones and allowed-hosts "
         "(https://chat.example); one * in an origin stands for any characters (app://*, "
         "http://192.168.*, which means addresses alone); *: every origin."),
    STRING("listen", "admin-socket", admin_socket, "auto",
           "The UNIX socket of the admin interface, for weftctl; auto: PORT.sock in "
           "$XDG_RUNTIME_DIR/weft or ~/.local/state/weft, where weftctl finds it; empty: none."),
    STRING("listen", "api-keys", api_keys, "",
           "A file with one API key per line (NAME:KEY or KEY), read again on SIGHUP; empty: no "
           "key is required."),
    LIST("listen", "allow-pull", allow_pull, "",
         "Tenants whose clients may pull, create, copy and delete models by Ollama's API, and use "
         "/sleep and /wake_up; *: all; empty: none."),
    LIST("listen", "picture-hosts", picture_hosts, "",
         "Hosts (HOST or HOST:PORT) from which weftd fetches pictures that requests give as "
         "https:// addresses; empty: weftd fetches no pictures."),
    STRING("listen", "tenants", tenants, "",
           "A file with the tenants, their weights and limits (conf/tenants.conf), read again on "
           "SIGHUP; empty: all tenants are equal and unlimited."),
    BOOL("listen", "anonymous", anonymous, "no",
         "Allow addresses other than loopback without API keys."),

    UINT("limits", "max-connections", api.max_connections, "1024", 1, 100000,
         "Open client connections over TCP, and the same number over UNIX sockets. Beyond that the "
         "oldest idle connection is closed; if none is idle, new connections get 503."),
    UINT("limits", "max-running", api.max_running, "256", 1, 100000,
         "Generations handed to the worker at once."),
    UINT("limits", "max-queued", api.max_queued, "256", 0, 100000,
         "Generations that wait beyond max-running; further requests get 429 with Retry-After."),
    UINT("limits", "max-n", api.max_n, "8", 1, 128, "Largest n of a request."),
    SIZE("limits", "max-body", api.max_body_bytes, "32M", 1 * KiB, 1 * GiB,
         "Largest request body."),
    UINT("limits", "picture-max-megapixels", api.picture_max_megapixels, "32", 1,
         PICTURE_MEGAPIXELS_MAX,
         "Largest picture in requests, in units of 1,048,576 pixels: 32 holds a screenshot of 8K. "
         "Files that are decoded as a whole take at most two bytes of memory per pixel of this "
         "limit."),
    SIZE("limits", "max-header", api.max_header_bytes, "16K", 1 * KiB, 1 * MiB,
         "Largest request header."),
    UINT("limits", "max-header-count", api.max_header_count, "100", 8, 10000,
         "Most header lines of a request."),
    UINT("limits", "header-timeout-ms", api.header_timeout_ms, "10000", 100, 3600000,
         "Time for the request line and headers to arrive."),
    UINT("limits", "body-timeout-ms", api.body_timeout_ms, "30000", 100, 3600000,
         "Time for the body to arrive."),
    UINT("limits", "idle-timeout-ms", api.idle_timeout_ms, "75000", 100, 86400000,
         "Time that a kept-alive connection may stay idle."),
    UINT("limits", "keepalive-ms", api.keepalive_ms, "5000", 100, 300000,
         "Silence of a stream after which a comment is sent."),
    SIZE("limits", "stream-buffer", api.stream_buffer_bytes, "256K", 4 * KiB, 64 * MiB,
         "Unsent bytes of a stream above which its reader counts as slow."),
    UINT("limits", "stall-timeout-ms", api.stall_timeout_ms, "30000", 100, 3600000,
         "Time that a slow reader has before its generation is cancelled."),
    UINT("limits", "request-timeout-ms", api.request_timeout_ms, "0", 0, 86400000,
         "Time that a whole request may take; 0: no limit."),
    UINT("limits", "drain-timeout-ms", drain_timeout_ms, "30000", 0, 86400000,
         "Time that running streams have to finish after SIGTERM."),
    UINT("limits", "upgrade-timeout-ms", upgrade_timeout_ms, "0", 0, 86400000,
         "Time that requests of the old daemon have after an upgrade; 0: until they end."),
    UINT("limits", "load-wait-ms", api.load_wait_ms, "120000", 0, 3600000,
         "Time that a request waits while its model is loaded."),
    UINT("limits", "default-max-tokens", api.default_max_tokens, "0", 0, 100000000,
         "max_tokens of chat requests that do not set it; 0: up to the end of the context."),

    BOOL("limits", "complete-output", api.complete_output, "yes",
         "Guide constrained output and tool calls to their shortest end before max_tokens or the "
         "context cuts them, and refuse requests whose shortest output does not fit; a request can "
         "turn this off."),

    UINT("limits", "stored-responses", api.max_stored, "10000", 0, 1000000,
         "Responses of /v1/responses kept in memory for requests that continue them; 0: none."),
    SIZE("limits", "stored-memory", api.stored_bytes, "64M", 64 * KiB, 64 * GiB,
         "Memory for stored responses; when it is full, the tenant that uses most of it loses its "
         "oldest response."),
    UINT("limits", "stored-ttl-s", api.stored_ttl_s, "86400", 1, 31536000,
         "Seconds that a response is kept after it was last continued."),

    NAME("engine", "backend", engine.backend, "auto", "auto|cpu|cuda|reference",
         "The device that computes; auto: cuda if a device passes its self-test and holds the "
         "model, else cpu."),
    NAME("engine", "isa", engine.isa, "auto",
         "auto|generic|avx2|avx512|avx512bf16|amx|neon|dotprod|i8mm",
         "Instruction set of the cpu backend; all give the same tokens."),
    UINT("engine", "threads", engine.n_threads, "0", 0, 1024,
         "Threads of the cpu backend; 0: one for every core that weftd may use, fewer under a "
         "quota."),
    STRING("engine", "devices", engine.devices, "0",
           "CUDA devices that share the model, such as 0,1, with the same tokens. Equal ones with "
           "peer access divide the matrices (their number must divide that of key heads), others "
           "the layers."),
    UINT_OR("engine", "host-experts", engine.host_experts, "auto", "auto",
            "Number of first layers whose experts the CPU computes beside a CUDA device; auto: the "
            "least picked experts, as few as possible while max-context (or 32,768 tokens) fits on "
            "the device."),
    BOOL("engine", "fetch-experts", engine.fetches_experts, "no",
         "Let the CUDA device compute the experts in host memory as well: it reads them over PCIe "
         "and caches the last picked ones. The tokens are those of a device that holds all "
         "experts."),
    UINT_OR("engine", "device-layers", engine.device_layers, "auto", "auto",
            "Number of first layers of a dense model that are wholly on a CUDA device; the CPU "
            "computes the FFNs of the other layers. auto: as many as fit beside max-context, or "
            "8,192 tokens; 0: all."),
    UINT("engine", "kv-pages", engine.n_pages, "0", 0, 16777216,
         "Pages of KV memory; 0: as many as fit in kv-memory."),
    SIZE("engine", "kv-memory", engine.kv_bytes, "0", 0, 4096 * GiB,
         "Size of the KV cache; 0: about a quarter of the free memory, on cuda the memory that the "
         "weights leave on the device."),
    SIZE("engine", "host-kv-memory", engine.host_kv_bytes, "0", 0, 4096 * GiB,
         "Host memory for prefixes that do not fit on the device; copying them back is faster than "
         "computing them again."),
    STRING("engine", "kv-disk", kv_disk, "",
           "A folder for a file that keeps prefixes over restarts; the file contains the tokens of "
           "prompts. Empty: none."),
    SIZE("engine", "kv-disk-size", sched.disk.n_bytes, "16G", 1 * MiB, 65536 * GiB,
         "Largest size of the file of kv-disk; the least recently used pages are replaced."),
    SIZE("engine", "kv-disk-daily", sched.disk.daily_bytes, "256G", 0, 65536 * GiB,
         "Most bytes per day that are written to the file of kv-disk, averaged over hours, because "
         "writing wears disks; 0: no limit."),
    SIZE("engine", "draft-kv-memory", draft_kv_bytes, "0", 0, 4096 * GiB,
         "KV memory of the draft model; 0: a quarter of the model's KV memory, on cuda a sixteenth "
         "of the memory that is left on the device."),
    LIST("engine", "override-kv", override_kv, "",
         "Values that replace those of the model file: KEY=TYPE:VALUE,... with the types int, "
         "float, bool and str. general.architecture=str:NAME also renames the keys of the file's "
         "own architecture."),
    CHOICE("engine", "kv-type", kv_type, "f16", KV_TYPE_NAMES "|auto", false,
           "Format of keys and values; q4_0 is less exact; auto: f16, or q8_0 if f16 does not hold "
           "the context."),
    CHOICE("engine", "kv-type-k", kv_type_k, "kv-type", "kv-type|" KV_TYPE_NAMES, false,
           "Format of keys; kv-type: the value of the option kv-type."),
    CHOICE("engine", "kv-type-v", kv_type_v, "kv-type", "kv-type|" KV_TYPE_NAMES, false,
           "Format of values; kv-type: the value of the option kv-type."),
    UINT("engine", "page-tokens", engine.page_tokens, "32", 16, 64,
         "Tokens per page: 16, 32 or 64."),
    UINT("engine", "max-context", engine.max_context, "0", 0, 100000000,
         "Longest prompt plus output, in tokens; 0: the model's limit."),
    UINT("engine", "max-batch-rows", engine.max_rows, "512", 16, 65536,
         "Most tokens computed in a step."),
    UINT("engine", "picture-max-tokens", engine.picture_rows, "0", 0, 65536,
         "Most tokens of a picture: larger pictures are scaled down; 0: the model's own limit."),
    SIZE("engine", "picture-cache", sched.picture_bytes, "1G", 0, 4096 * GiB,
         "Memory for encoded pictures that requests may use again; at most 1/16 of the machine's "
         "memory."),
    UINT("engine", "max-seqs", engine.max_seqs, "64", 1, 1000, "Most requests computed in a step."),
    UINT("engine", "depth", sched.depth, "2", 1, 2,
         "Steps in flight, if the backend can overlap them."),
    UINT(
        "engine", "itl-target-ms", sched.itl_target_ms, "50", 1, 60000,
        "Target for the time between two tokens of a stream; prefill chunks are sized to keep it."),
    UINT("engine", "max-step-ms", sched.max_step_ms, "200", 1, 60000,
         "Longest step while no request decodes."),
    CHOICE("engine", "speculation", sched.no_speculation, "auto", "auto|off", false,
           "Speculative decoding: draft tokens and verify several of them in a step; the output "
           "does not change."),
    CHOICE("engine", "pin", sched.no_pins, "auto", "auto|off", false,
           "Keep the pages of a session's last turn for its next turn, as long as no other request "
           "needs them."),
    BOOL("engine", "prewarm", api.prewarm, "yes",
         "While the device is idle, compute the expected beginning of a chat's next turn."),
    LIST("engine", "draft-sources", draft_sources, "forced, prediction, suffix, recent, model, mtp",
         "Sources of draft tokens (docs/design/speculation.md). mtp: the model's blocks of "
         "multi-token prediction, its assistant, or a block drafter."),
    UINT("engine", "max-draft", sched.max_draft, "16", 1, 32,
         "Most tokens drafted for a request in a step."),
    UINT("engine", "hang-timeout-ms", hang_timeout_ms, "30000", 1000, 3600000,
         "Time without progress, while requests wait, after which a worker is replaced."),
    UINT("engine", "load-timeout-ms", load_timeout_ms, "1800000", 1000, 86400000,
         "Time in which a model must load."),
    BOOL("engine", "logits-digest", engine.digest, "yes",
         "Compute a digest of every token's logits and allow \"logits_digest\" in requests."),

    CHOICE("log", "log-level", log_level, "info", "error|warn|info|debug", true,
           "The least severe level that is logged."),
    CHOICE("log", "log-format", log_format, "text", "text|json", false,
           "Format of the lines on stderr; the journal gets fields in either case."),
    UINT("log", "log-requests", api.log_lines, "50", 0, 1000000,
         "Log lines about requests that one tenant or address may cause per second on average, "
         "with bursts of ten times that number; one line counts the omitted ones. 0: no limit."),
    STRING("log", "otlp-endpoint", api.otlp_endpoint, "",
           "OpenTelemetry collector that receives traces by OTLP/HTTP: "
           "http[s]://HOST[:PORT][/PATH] or unix:/PATH; empty: none."),
    STRING("log", "kv-events", kv_events, "",
           "ZeroMQ address where routers subscribe to events of the prefix cache, in vLLM's "
           "format: tcp://HOST:5557 or ipc://PATH. Subscribers can read the tokens of all prompts. "
           "Empty: none."),
    STRING("log", "kv-events-replay", kv_events_replay, "",
           "ZeroMQ address where subscribers ask for missed events; empty: none."),
    STRING("log", "kv-events-topic", kv_events_topic, "",
           "Beginning of the topic of KV events, before @MODEL; empty: kv@ and the name of this "
           "host."),
    STRING("log", "fault-dir", fault_dir, "",
           "A folder for recordings of the scheduler's last decisions before a worker died, for "
           "weft-sim replay; the last eight are kept. Empty: $STATE_DIRECTORY, which systemd sets, "
           "or none."),
    STRING("log", "state-file", state_file, "",
           "A database (SQLite) with usage, quotas, stored responses and conversations; empty: the "
           "file state.db in $STATE_DIRECTORY. Without both, they are lost when the process ends."),
    STRING("log", "usage-file", usage_file, "",
           "The file with the usage of an earlier version, which is added to state-file at the "
           "start and renamed; empty: the file usage in $STATE_DIRECTORY."),
};
const uint32_t config_table_n = ARRAY_SIZE(config_table);
