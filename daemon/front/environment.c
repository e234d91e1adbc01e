#include "daemon/front/environment.h"

#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/try.h"
#include "daemon/config/config.h"
#include "daemon/front/llama_options.h"

#define LIST_MAX 4096u
#define NAME_MAX_BYTES 64

enum variable_kind {
    /* value of `option` */
    VARIABLE_VALUE,
    /* stands for `option` if it is on */
    VARIABLE_FLAG,
    /* a time as Ollama writes it: 300, 5m, -1 */
    VARIABLE_SECONDS,
    /* the same; `option` takes milliseconds */
    VARIABLE_MS,
    /* [http://]HOST[:PORT] of Ollama */
    VARIABLE_ADDRESS,
    /* has no effect, and needs no word */
    VARIABLE_SILENT,
};

/* Variables whose name does not give the option's, as LLAMA_ARG_CTX_SIZE does. */
static const struct variable {
    const char *name;
    enum variable_kind kind;
    const char *option;
} table[] = {
    {"LLAMA_API_KEY", VARIABLE_VALUE, "--api-key"},
    {"LLAMA_CHAT_TEMPLATE_KWARGS", VARIABLE_VALUE, "--chat-template-kwargs"},
    {"LLAMA_ARG_N_PARALLEL", VARIABLE_VALUE, "--parallel"},
    {"LLAMA_ARG_BATCH", VARIABLE_VALUE, "--batch-size"},
    {"LLAMA_ARG_UBATCH", VARIABLE_VALUE, "--ubatch-size"},
    {"LLAMA_ARG_THINK", VARIABLE_VALUE, "--reasoning-format"},
    {"LLAMA_ARG_THINK_BUDGET", VARIABLE_VALUE, "--reasoning-budget"},
    {"LLAMA_ARG_ENDPOINT_METRICS", VARIABLE_SILENT, NULL},
    {"LLAMA_ARG_ENDPOINT_PROPS", VARIABLE_SILENT, NULL},
    {"LLAMA_ARG_ENDPOINT_SLOTS", VARIABLE_SILENT, NULL},
    {"LLAMA_ARG_STATIC_PATH", VARIABLE_VALUE, "--path"},
    {"LLAMA_LOG_FILE", VARIABLE_SILENT, NULL},
    {"LLAMA_LOG_VERBOSITY", VARIABLE_SILENT, NULL},
    {"LLAMA_OFFLINE", VARIABLE_SILENT, NULL},
    {"LLAMA_CACHE", VARIABLE_SILENT, NULL},
    {"OLLAMA_HOST", VARIABLE_ADDRESS, "--listen"},
    {"OLLAMA_KEEP_ALIVE", VARIABLE_SECONDS, "--keep-alive-s"},
    {"OLLAMA_LOAD_TIMEOUT", VARIABLE_MS, "--load-timeout-ms"},
    {"OLLAMA_CONTEXT_LENGTH", VARIABLE_VALUE, "--max-context"},
    {"OLLAMA_NUM_PARALLEL", VARIABLE_VALUE, "--max-running"},
    {"OLLAMA_KV_CACHE_TYPE", VARIABLE_VALUE, "--kv-type"},
    {"OLLAMA_ORIGINS", VARIABLE_VALUE, "--cors-origins"},
    {"OLLAMA_MAX_QUEUE", VARIABLE_VALUE, "--max-queued"},
    {"OLLAMA_DEBUG", VARIABLE_FLAG, "--log-level=debug"},
    {"OLLAMA_MODELS", VARIABLE_SILENT, NULL}, /* model_dir.h */
    {"OLLAMA_FLASH_ATTENTION", VARIABLE_SILENT, NULL},
    {"OLLAMA_NOHISTORY", VARIABLE_SILENT, NULL},
    {"OLLAMA_NOPRUNE", VARIABLE_SILENT, NULL},
    {"VLLM_API_KEY", VARIABLE_VALUE, "--api-key"},
    {"VLLM_LOGGING_LEVEL", VARIABLE_VALUE, "--uvicorn-log-level"},
};

static const struct variable *environment_find(const char *name) {
    for (size_t i = 0; i < ARRAY_SIZE(table); i++)
        if (strcmp(table[i].name, name) == 0)
            return &table[i];
    return NULL;
}

static bool is_on(const char *value) {
    static const char *const off[] = {"0", "off", "false", "disabled", "no"};

    for (size_t i = 0; i < ARRAY_SIZE(off); i++)
        if (strcasecmp(value, off[i]) == 0)
            return false;
    return true;
}

/* Appends OPTION=VALUE, or OPTION alone if @value is NULL. */
static int environment_add(struct environment *e, const char *option, const char *value) {
    char **v = reallocarray(e->v, (size_t)e->n + 2, sizeof(*v));

    if (!v)
        return -ENOMEM;
    e->v = v;
    e->v[e->n + 1] = NULL;
    int r = asprintf(&e->v[e->n], "%s%s%s", option, value ? "=" : "", value ? value : "");
    if (r < 0) {
        e->v[e->n] = NULL;
        return -ENOMEM;
    }
    e->n++;
    return 0;
}

/* Reads a time of Ollama. Returns false if @text is none. */
static bool environment_seconds(const char *text, uint64_t *out) {
    static const struct {
        const char *name;
        double seconds;
    } units[] = {{"", 1}, {"s", 1}, {"ms", 0.001}, {"m", 60}, {"h", 3600}};
    char *end;
    double n = strtod(text, &end);

    for (size_t i = 0; end != text && i < ARRAY_SIZE(units); i++)
        if (strcmp(end, units[i].name) == 0 && n * units[i].seconds < 1e8) {
            /* negative: for ever, which is 0 here; 0: at once, for which 1 is the nearest */
            *out = n < 0 ? 0 : MAX((uint64_t)(n * units[i].seconds), 1u);
            return true;
        }
    return false;
}

static int add_seconds(struct environment *e, const struct variable *v, const char *value) {
    char number[32];
    uint64_t n;

    if (!environment_seconds(value, &n))
        return environment_add(e, v->option, value); /* the option refuses it */
    snprintf(number, sizeof(number), "%llu",
             (unsigned long long)(v->kind == VARIABLE_MS ? n * 1000 : n));
    return environment_add(e, v->option, number);
}

/* Adds the address of Ollama's server, whose port is 11434 if it has none. */
static int add_address(struct environment *e, const struct variable *v, const char *value) {
    const char *scheme = strstr(value, "://");
    const char *host = scheme ? scheme + 3 : value;
    int len = (int)strcspn(host, "/");
    const char *port = memrchr(host, ':', (size_t)len);
    const char *local = *host == ':' || len == 0 ? "127.0.0.1" : "";
    bool bare = !port || memchr(port, ']', (size_t)(host + len - port));
    char address[300];

    snprintf(address, sizeof(address), "%s%.*s%s", local, len, host, bare ? ":11434" : "");
    return environment_add(e, v->option, address);
}

static int environment_apply_row(struct environment *e, const struct variable *v,
                                 const char *value) {
    if (v->kind == VARIABLE_SILENT || (v->kind == VARIABLE_FLAG && !is_on(value)))
        return 0;
    switch (v->kind) {
    case VARIABLE_FLAG:
        TRY(environment_add(e, v->option, NULL));
        break;
    case VARIABLE_SECONDS:
    case VARIABLE_MS:
        TRY(add_seconds(e, v, value));
        break;
    case VARIABLE_ADDRESS:
        TRY(add_address(e, v, value));
        break;
    default:
        TRY(environment_add(e, v->option, value));
    }
    return buf_printf(&e->used, "%s%s", e->used.len ? ", " : "", v->name);
}

/* Takes LLAMA_ARG_NAME, which stands for --name. */
static int apply_argument(struct environment *e, const char *name, const char *value) {
    char option[NAME_MAX_BYTES];
    size_t n = (size_t)snprintf(option, sizeof(option), "--%s", name + strlen("LLAMA_ARG_"));

    for (char *c = option; *c; c++)
        *c = (char)(*c == '_' ? '-' : tolower((unsigned char)*c));
    const struct llama_option *o = llama_option_find(option, n);
    if (!o && !config_has(option + 2, n - 2))
        return buf_printf(&e->unread, "%s%s", e->unread.len ? ", " : "", name);
    if (o && llama_option_has_no_value(o)) {
        if (!is_on(value))
            return 0;
        value = NULL;
    }
    TRY(environment_add(e, option, value));
    return buf_printf(&e->used, "%s%s", e->used.len ? ", " : "", name);
}

static bool environment_begins(const char *name, const char *with) {
    return strncmp(name, with, strlen(with)) == 0;
}

static int environment_apply(struct environment *e, const char *name, const char *value) {
    const struct variable *v = environment_find(name);

    if (v)
        return environment_apply_row(e, v, value);
    if (environment_begins(name, "LLAMA_ARG_"))
        return apply_argument(e, name, value);
    if (environment_begins(name, "OLLAMA_") || environment_begins(name, "VLLM_"))
        return buf_printf(&e->unread, "%s%s", e->unread.len ? ", " : "", name);
    return 0;
}

int environment_read(struct environment *e, char **envp) {
    *e = (struct environment){.used = {.max = LIST_MAX}, .unread = {.max = LIST_MAX}};
    TRY(environment_add(e, "weftd", NULL));
    for (char **at = envp; *at; at++) {
        const char *equals = strchr(*at, '=');
        char name[NAME_MAX_BYTES + 1];

        if (!equals || !equals[1] || equals - *at > NAME_MAX_BYTES)
            continue;
        snprintf(name, sizeof(name), "%.*s", (int)(equals - *at), *at);
        int r = environment_apply(e, name, equals + 1);
        if (r < 0 && r != -EMSGSIZE)
            return r;
    }
    return 0;
}

void environment_deinit(struct environment *e) {
    for (char **v = e->v; v && *v; v++)
        free(*v);
    free(e->v);
    buf_deinit(&e->used);
    buf_deinit(&e->unread);
    *e = (struct environment){0};
}
