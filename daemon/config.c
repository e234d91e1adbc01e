#include "daemon/config.h"

#include <errno.h>
#include <string.h>
#include "daemon/keyfile.h"
#include "proto/messages.h"

#define KiB (1ull << 10)
#define MiB (1ull << 20)
#define GiB (1ull << 30)
#define AT(field) offsetof(struct config, field)
#define STRING(section, key, field, initial, help)                                                 \
    { section, key, OPTION_STRING, AT(field), initial, 0, 0, NULL, false, help }
#define LIST(section, key, field, initial, help)                                                   \
    { section, key, OPTION_LIST, AT(field), initial, 0, 0, NULL, false, help }
#define CHOICE(section, key, field, initial, choices, reloads, help)                               \
    { section, key, OPTION_CHOICE, AT(field), initial, 0, 0, choices, reloads, help }
#define UINT(section, key, field, initial, min, max, help)                                         \
    { section, key, OPTION_UINT, AT(field), initial, min, max, NULL, false, help }
#define SIZE(section, key, field, initial, min, max, help)                                         \
    { section, key, OPTION_SIZE, AT(field), initial, min, max, NULL, false, help }
#define BOOL(section, key, field, initial, help)                                                   \
    { section, key, OPTION_BOOL, AT(field), initial, 0, 1, NULL, false, help }

const struct option config_table[] = {
    STRING("model", "model", model, "", "The GGUF file to serve; of a split model any shard."),
    STRING("model", "model-name", model_name, "",
           "The name clients use; empty: the file's name without .gguf."),
    STRING("model", "chat-template", chat_template, "",
           "A file with the chat template to use instead of the model's own."),
    STRING("model", "draft-model", draft_model, "",
           "A small model with the same tokens that guesses what the model will say; it changes no "
           "token."),

    LIST("listen", "listen", listen, "127.0.0.1:8080",
         "Addresses to serve HTTP on, separated by commas: HOST:PORT, [IPv6]:PORT or unix:PATH."),
    LIST("listen", "allowed-hosts", hosts, "",
         "Names accepted in the Host header besides loopback ones; * accepts every name."),
    STRING("listen", "admin-socket", admin_socket, "",
           "The UNIX socket of the admin interface; empty: none."),
    STRING("listen", "api-keys", api_keys, "",
           "A file with one API key per line (NAME:KEY or KEY), read again on SIGHUP; empty: none "
           "is asked for."),
    STRING("listen", "tenants", tenants, "",
           "A file with the tenants, their weights and limits (conf/tenants.conf), read again on "
           "SIGHUP; empty: all are equal and unlimited."),
    BOOL("listen", "anonymous", anonymous, "no",
         "Allow addresses other than loopback without API keys."),

    UINT("limits", "max-connections", max_connections, "1024", 1, 100000,
         "Open client connections; more get 503."),
    UINT("limits", "max-running", max_running, "256", 1, 100000,
         "Generations handed to the worker at once."),
    UINT("limits", "max-queued", max_queued, "256", 0, 100000,
         "Generations waiting beyond these; more get 429 with Retry-After."),
    UINT("limits", "max-n", max_n, "8", 1, 128, "Largest n of a request."),
    SIZE("limits", "max-body", max_body, "32M", 1 * KiB, 1 * GiB, "Largest request body."),
    SIZE("limits", "max-header", max_header, "16K", 1 * KiB, 1 * MiB, "Largest request header."),
    UINT("limits", "max-header-count", max_header_count, "100", 8, 10000,
         "Most header lines of a request."),
    UINT("limits", "header-timeout-ms", header_timeout_ms, "10000", 100, 3600000,
         "Time for the request line and headers to arrive."),
    UINT("limits", "body-timeout-ms", body_timeout_ms, "30000", 100, 3600000,
         "Time for the body to arrive."),
    UINT("limits", "idle-timeout-ms", idle_timeout_ms, "75000", 100, 86400000,
         "Time that a kept-alive connection may stay idle."),
    UINT("limits", "keepalive-ms", keepalive_ms, "5000", 100, 300000,
         "Silence of a stream after which a comment is sent."),
    SIZE("limits", "stream-buffer", stream_buffer, "256K", 4 * KiB, 64 * MiB,
         "Unsent bytes of a stream above which its reader counts as slow."),
    UINT("limits", "stall-timeout-ms", stall_timeout_ms, "30000", 100, 3600000,
         "Time that a slow reader has before its generation is cancelled."),
    UINT("limits", "request-timeout-ms", request_timeout_ms, "0", 0, 86400000,
         "Time that a request may take in all; 0: no limit."),
    UINT("limits", "drain-timeout-ms", drain_timeout_ms, "30000", 0, 86400000,
         "Time that running streams have to finish after SIGTERM."),
    UINT("limits", "default-max-tokens", default_max_tokens, "0", 0, 100000000,
         "max_tokens of chat requests that give none; 0: up to the end of the context."),

    UINT("limits", "stored-responses", stored_responses, "10000", 0, 1000000,
         "Responses of /v1/responses kept in memory for those who come back to them; 0: none."),
    SIZE("limits", "stored-memory", stored_memory, "64M", 64 * KiB, 64 * GiB,
         "Memory for them; the oldest of the tenant with the most make room."),
    UINT("limits", "stored-ttl-s", stored_ttl_s, "86400", 1, 31536000,
         "Seconds that one is kept after it was last continued."),

    CHOICE("engine", "backend", backend, "auto", "auto|cpu|cuda|reference", false,
           "What computes; auto: cpu. cuda has not been checked on hardware yet and must be asked "
           "for."),
    CHOICE("engine", "isa", isa, "auto", "auto|generic|avx2|avx512", false,
           "Instruction set of the cpu backend; all give the same tokens."),
    UINT("engine", "threads", threads, "0", 0, 1024,
         "Threads of the cpu backend; 0: one for every core."),
    CHOICE("engine", "determinism", determinism, "strict", "strict|fast", false,
           "strict: a request's tokens do not depend on what else is computed; fast: cuda may use "
           "other kernels for large steps."),
    UINT("engine", "kv-pages", kv_pages, "0", 0, 16777216,
         "Pages of KV memory; 0: as many as fit in kv-memory."),
    SIZE("engine", "kv-memory", kv_memory, "0", 0, 4096 * GiB,
         "KV memory; 0: a quarter of the memory that is free; cuda: all that the device has left."),
    SIZE("engine", "host-kv-memory", host_kv_memory, "0", 0, 4096 * GiB,
         "Memory of the machine for prefixes that a device has no room for; they come back faster "
         "than they are computed."),
    STRING(
        "engine", "kv-disk", kv_disk, "",
        "A folder for a file that keeps prefixes over restarts; empty: none. The tokens of prompts "
        "are in it."),
    SIZE("engine", "kv-disk-size", kv_disk_size, "16G", 1 * MiB, 65536 * GiB,
         "Largest size of that file; the least recently used goes."),
    SIZE("engine", "kv-disk-daily", kv_disk_daily, "256G", 0, 65536 * GiB,
         "Most that is written to that file in a day, on average over hours: disks wear out; 0: no "
         "limit."),
    SIZE("engine", "draft-kv-memory", draft_kv_memory, "0", 0, 4096 * GiB,
         "KV memory of the draft model; 0: a quarter of that of the model; cuda: a sixteenth of "
         "what "
         "the device has left."),
    CHOICE("engine", "kv-type", kv_type, "f16", "f16|q8_0", false, "Format of keys and values."),
    UINT("engine", "page-tokens", page_tokens, "32", 16, 64, "Tokens per page: 16, 32 or 64."),
    UINT("engine", "max-context", max_context, "0", 0, 100000000,
         "Longest prompt and output together; 0: the model's."),
    UINT("engine", "max-batch-rows", max_rows, "512", 16, 65536, "Most tokens computed in a step."),
    UINT("engine", "max-seqs", max_seqs, "64", 1, 1000, "Most requests computed in a step."),
    UINT("engine", "depth", depth, "2", 1, 2,
         "Steps in flight, where the backend can overlap them."),
    UINT("engine", "itl-target-ms", itl_target_ms, "50", 1, 60000,
         "Target for the time between tokens: prefill chunks are sized to keep it."),
    UINT("engine", "max-step-ms", max_step_ms, "200", 1, 60000,
         "Longest step when nothing is being decoded."),
    CHOICE(
        "engine", "speculation", speculation, "auto", "auto|off", false,
        "Guess tokens from what was written before and check several at once; changes no token."),
    CHOICE("engine", "retention", retention, "auto", "auto|off", false,
           "Keep the pages of a session's last turn for its next one, as long as nobody else must "
           "have them."),
    CHOICE("engine", "warm-turn", warm_turn, "on", "on|off", false,
           "When a chat's turn has ended and nobody asks for anything, compute how its next one "
           "will begin."),
    LIST("engine", "draft-sources", draft_sources, "forced, prediction, suffix, recent, model",
         "Where guesses may come from (docs/speculation.md)."),
    UINT("engine", "max-draft", max_draft, "16", 1, 32, "Most tokens guessed at once."),
    UINT("engine", "hang-timeout-ms", hang_timeout_ms, "30000", 1000, 3600000,
         "A worker that completes no step for this long while requests wait is replaced."),
    UINT("engine", "load-timeout-ms", load_timeout_ms, "1800000", 1000, 86400000,
         "Time for loading the model."),
    BOOL("engine", "logits-digest", digests, "yes",
         "Compute a digest of every token's logits and allow \"logits_digest\" in requests."),

    CHOICE("log", "log-level", log_level, "info", "error|warn|info|debug", true, "What is logged."),
    STRING("log", "fault-dir", fault_dir, "",
           "A folder for what was decided before a worker died (weft-sim replay), the last eight "
           "times; empty: $STATE_DIRECTORY, which systemd sets, or else none."),
};
const uint32_t config_table_n = ARRAY_SIZE(config_table);

/* ---- values ---- */

static int set_string(char **at, const char *text) {
    char *copy = strdup(text);

    if (!copy)
        return -ENOMEM;
    free(*at);
    *at = copy;
    return 0;
}

static void clear_list(char **list) {
    for (; *list; list++) {
        free(*list);
        *list = NULL;
    }
}

static int set_list(char **list, const char *text, const char *key, struct err *err) {
    uint32_t n = 0;

    clear_list(list);
    while (*text) {
        size_t len = strcspn(text, ",");
        const char *end = text + len;

        while (len && *text == ' ')
            text++, len--;
        while (len && text[len - 1] == ' ')
            len--;
        if (len && n == CONFIG_LIST_MAX)
            return err_set(err, 0, key, "%s: at most %d entries", key, CONFIG_LIST_MAX);
        if (len && !(list[n++] = strndup(text, len)))
            return -ENOMEM;
        text = *end ? end + 1 : end;
    }
    return 0;
}

/* A decimal number, with K, M or G behind it when @size. */
static int parse_uint(const char *text, bool size, uint64_t *out) {
    char *end;

    if (*text < '0' || *text > '9')
        return -EINVAL;
    errno = 0;
    uint64_t v = strtoull(text, &end, 10);
    if (errno)
        return -EINVAL;
    if (size && *end) {
        static const char units[] = "KMG";
        const char *u = strchr(units, *end & ~0x20);

        if (!u || end[1])
            return -EINVAL;
        if (__builtin_mul_overflow(v, 1ull << (10 * (u - units + 1)), &v))
            return -EINVAL;
    } else if (*end) {
        return -EINVAL;
    }
    *out = v;
    return 0;
}

static int parse_bool(const char *text, bool *out) {
    static const char *const yes[] = {"yes", "true", "on", "1"}, *const no[] = {"no", "false",
                                                                                "off", "0"};

    for (size_t i = 0; i < ARRAY_SIZE(yes); i++) {
        if (strcmp(text, yes[i]) == 0 || strcmp(text, no[i]) == 0) {
            *out = strcmp(text, yes[i]) == 0;
            return 0;
        }
    }
    return -EINVAL;
}

static bool is_choice(const char *choices, const char *text) {
    size_t len = strlen(text);

    for (const char *p = choices; *p; p += strcspn(p, "|"), p += *p == '|')
        if (strcspn(p, "|") == len && memcmp(p, text, len) == 0)
            return true;
    return false;
}

struct size_text {
    char s[24];
};

static struct size_text size_text(uint64_t v) {
    static const char *const units[] = {"", "K", "M", "G"};
    struct size_text t;
    int unit = 0;

    for (; unit < 3 && v && v % 1024 == 0; unit++)
        v /= 1024;
    snprintf(t.s, sizeof(t.s), "%llu%s", (unsigned long long)v, units[unit]);
    return t;
}

static int set_number(const struct option *o, char *at, const char *text, struct err *err) {
    uint64_t v;

    if (parse_uint(text, o->type == OPTION_SIZE, &v) < 0 || v < o->min || v > o->max)
        return o->type == OPTION_SIZE
                   ? err_set(err, 0, o->key,
                             "%s: must be a size from %s to %s, such as 512M or 4G, "
                             "not \"%s\"",
                             o->key, size_text(o->min).s, size_text(o->max).s, text)
                   : err_set(err, 0, o->key,
                             "%s: must be a whole number from %llu to %llu, not \"%s\"", o->key,
                             (unsigned long long)o->min, (unsigned long long)o->max, text);
    memcpy(at, &v, sizeof(v));
    return 0;
}

/* What a shell would have taken away or put in. */
static int check_shell(const struct option *o, const char *text, struct err *err) {
    size_t len = strlen(text);

    if (text[0] == '~')
        return err_set(err, 0, o->key,
                       "%s: ~ is not expanded here: write the whole path, not \"%s\"", o->key,
                       text);
    if (len > 1 && (text[0] == '"' || text[0] == '\'') && text[len - 1] == text[0])
        return err_set(err, 0, o->key, "%s: must be written without quotes, not %s", o->key, text);
    return 0;
}

static int set(struct config *c, const struct option *o, const char *text, struct err *err) {
    char *at = (char *)c + o->offset;
    int r = check_shell(o, text, err);

    if (r < 0)
        return r;

    switch (o->type) {
    case OPTION_STRING:
        return set_string((char **)(void *)at, text);
    case OPTION_LIST:
        return set_list((char **)(void *)at, text, o->key, err);
    case OPTION_UINT:
    case OPTION_SIZE:
        return set_number(o, at, text, err);
    case OPTION_BOOL:
        if (parse_bool(text, (bool *)at) < 0)
            return err_set(err, 0, o->key, "%s: must be yes or no, not \"%s\"", o->key, text);
        return 0;
    case OPTION_CHOICE:
        if (!is_choice(o->choices, text))
            return err_set(err, 0, o->key, "%s: must be one of %s, not \"%s\"", o->key, o->choices,
                           text);
        return set_string((char **)(void *)at, text);
    }
    return -EINVAL;
}

static const struct option *find(const char *key) {
    for (uint32_t i = 0; i < config_table_n; i++)
        if (strcmp(config_table[i].key, key) == 0)
            return &config_table[i];
    return NULL;
}

int config_init(struct config *c) {
    memset(c, 0, sizeof(*c));
    for (uint32_t i = 0; i < config_table_n; i++) {
        int r = set(c, &config_table[i], config_table[i].initial, NULL);

        if (r < 0)
            return r;
    }
    return 0;
}

void config_deinit(struct config *c) {
    for (uint32_t i = 0; i < config_table_n; i++) {
        const struct option *o = &config_table[i];
        char **at = (char **)(void *)((char *)c + o->offset);

        if (o->type == OPTION_LIST) {
            clear_list(at);
        } else if (o->type == OPTION_STRING || o->type == OPTION_CHOICE) {
            free(*at);
            *at = NULL;
        }
    }
}

/* A key, or a flag with its @dashes, that there is not. */
static int unknown(const char *dashes, const char *name, const char *what, struct err *err) {
    const char *meant = config_meant(name);

    return meant ? err_set(err, 0, name, "%s%.60s: unknown %s; is %s%s meant?", dashes, name, what,
                           *dashes ? "--" : "", meant)
                 : err_set(err, 0, name, "%s%.60s: unknown %s (weftd --help lists all)", dashes,
                           name, what);
}

/* ---- file ---- */

static int on_pair(void *ctx, const char *section, const char *name, const char *value,
                   struct err *err) {
    const struct option *o = find(name);

    if (!o)
        return unknown("", name, "key", err);
    if (!*section)
        return err_set(err, 0, name, "%s: needs the line [%s] above it", name, o->section);
    if (strcmp(o->section, section) != 0)
        return err_set(err, 0, name, "%s: belongs in section [%s], not [%s]", name, o->section,
                       section);
    if (strstr(value, " #"))
        return err_set(err, 0, name, "%s: a comment needs a line of its own", name);
    return set(ctx, o, value, err);
}

int config_read_file(struct config *c, const char *path, struct err *err) {
    return keyfile_read(path, "config", on_pair, c, err);
}

/* ---- flags ---- */

/* The value of flag argv[*i], which may stand behind '=' or be the next argument. */
static int flag_value(int argc, char **argv, int *i, char *key, size_t size, const char **value,
                      struct err *err) {
    const char *arg = argv[*i];

    if (arg[0] != '-')
        return err_set(err, 0, "", "%s: not an option; a model is given with --model FILE", arg);
    if (arg[1] != '-')
        return unknown("-", arg + 1, "option", err);
    size_t len = strcspn(arg + 2, "=");
    if (len >= size)
        return err_set(err, 0, "", "%.40s...: unknown option", arg);
    memcpy(key, arg + 2, len);
    key[len] = 0;
    if (arg[2 + len] == '=') {
        *value = arg + 2 + len + 1;
    } else if (strcmp(key, "config") != 0 && !find(key)) {
        return unknown("--", key, "option", err);
    } else if (++*i >= argc) {
        return err_set(err, 0, key, "--%s: needs a value", key);
    } else {
        *value = argv[*i];
    }
    return 0;
}

/* A list flag may be repeated: the first occurrence replaces, the next ones add. */
static int set_flag(struct config *c, const struct option *o, const char *value, bool again,
                    struct err *err) {
    char joined[4096];

    if (o->type != OPTION_LIST || !again)
        return set(c, o, value, err);
    config_value(c, o, joined, sizeof(joined));
    size_t n = strlen(joined);
    if (n + strlen(value) + 2 > sizeof(joined))
        return err_set(err, 0, o->key, "--%s: too long", o->key);
    snprintf(joined + n, sizeof(joined) - n, ",%s", value);
    return set(c, o, joined, err);
}

static int read_flags(struct config *c, int argc, char **argv, bool config_only, struct err *err) {
    bool seen[ARRAY_SIZE(config_table)] = {0};

    for (int i = 1; i < argc; i++) {
        char key[64];
        const char *value = "";
        int r = flag_value(argc, argv, &i, key, sizeof(key), &value, err);

        if (r < 0)
            return r;
        const struct option *o = find(key);
        bool is_config = strcmp(key, "config") == 0;
        if (!o && !is_config)
            return unknown("--", key, "option", err);
        if (is_config && config_only)
            r = config_read_file(c, value, err);
        else if (!is_config && !config_only)
            r = set_flag(c, o, value, seen[o - config_table], err);
        if (r < 0)
            return r;
        if (o)
            seen[o - config_table] = true;
    }
    return 0;
}

int config_read_args(struct config *c, int argc, char **argv, struct err *err) {
    int r = read_flags(c, argc, argv, true, err);

    return r < 0 ? r : read_flags(c, argc, argv, false, err);
}

static bool is_address(const char *address) {
    const char *colon = strrchr(address, ':');
    uint64_t port;

    return strncmp(address, "unix:", 5) == 0 ||
           (colon && colon != address && parse_uint(colon + 1, false, &port) == 0 && port <= 65535);
}

/* A listen address that only this machine reaches. */
static bool is_loopback(const char *address) {
    static const char *const local[] = {"unix:", "127.", "localhost:", "[::1]:"};

    for (size_t i = 0; i < ARRAY_SIZE(local); i++)
        if (strncmp(address, local[i], strlen(local[i])) == 0)
            return true;
    return false;
}

int config_draft_source(const char *name) {
    for (int i = 0; i < MSG_DRAFT_SOURCES; i++)
        if (strcmp(msg_draft_source[i], name) == 0)
            return i;
    return -1;
}

static int check_sources(const struct config *c, struct err *err) {
    for (char *const *name = c->draft_sources; *name; name++)
        if (config_draft_source(*name) < 0)
            return err_set(err, 0, "draft-sources",
                           "draft-sources: %s is none of forced, prediction, suffix, recent, model",
                           *name);
    return 0;
}

int config_check(const struct config *c, struct err *err) {
    if (!*c->model)
        return err_set(err, 0, "model", "model: no model file is given (--model FILE)");
    if (c->page_tokens != 16 && c->page_tokens != 32 && c->page_tokens != 64)
        return err_set(err, 0, "page-tokens", "page-tokens: must be 16, 32 or 64");
    if (!c->listen[0])
        return err_set(err, 0, "listen", "listen: at least one address is needed");
    for (char *const *l = c->listen; *l; l++) {
        if (!is_address(*l))
            return err_set(err, 0, "listen",
                           "listen: must be HOST:PORT, such as 127.0.0.1:8080, or unix:PATH, not "
                           "\"%s\"",
                           *l);
        if (!is_loopback(*l) && !*c->api_keys && !c->anonymous)
            return err_set(err, 0, "listen",
                           "listen: %s is reachable from other machines: give api-keys, or set "
                           "anonymous = yes to serve everyone",
                           *l);
    }
    if (c->max_seqs > c->max_rows)
        return err_set(err, 0, "max-seqs", "max-seqs: must not be larger than max-batch-rows");
    return check_sources(c, err);
}
