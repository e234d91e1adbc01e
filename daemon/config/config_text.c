/* Writes options as text: their values, the default configuration file, --help, and suggestions for
 * unknown names. All texts follow from the table. */

#include <assert.h>
#include <string.h>

#include "base/meant.h"
#include "daemon/config/config.h"

/* length of the longest line of config_help() */
#define HELP_COLUMNS 78

/* Returns the value of @o's field, which has the type of a number, a bool or an enum. */
static uint64_t config_text_load(const struct option *o, const char *at) {
    uint64_t v = 0;

    memcpy(&v, at, o->size);
    return v;
}

/* Returns word @i of "a|b|c", and its length in *@len. */
static const char *config_text_word(const char *choices, uint64_t i, int *len) {
    for (; i; i--) {
        choices += strcspn(choices, "|");
        assert(*choices);
        choices++;
    }
    *len = (int)strcspn(choices, "|");
    return choices;
}

size_t config_value(const struct config *c, const struct option *o, char *out, size_t size) {
    const char *at = (const char *)c + o->offset;
    char *const *list = (char *const *)(const void *)at;
    size_t n = 0;
    int len;

    assert(size > 0);
    switch (o->type) {
    case OPTION_STRING:
        n = (size_t)snprintf(out, size, "%s", *list);
        break;
    case OPTION_LIST:
        out[0] = 0;
        for (; *list; list++)
            n += (size_t)snprintf(n < size ? out + n : NULL, n < size ? size - n : 0, "%s%s",
                                  n ? "," : "", *list);
        break;
    case OPTION_UINT:
        if (o->choices && config_text_load(o, at) == o->max) {
            n = (size_t)snprintf(out, size, "%s", o->choices);
            break;
        }
        /* fallthrough */
    case OPTION_SIZE:
        n = (size_t)snprintf(out, size, "%llu", (unsigned long long)config_text_load(o, at));
        break;
    case OPTION_BOOL:
        n = (size_t)snprintf(out, size, "%s", *(const bool *)at ? "yes" : "no");
        break;
    case OPTION_CHOICE: {
        const char *word = config_text_word(o->choices, config_text_load(o, at), &len);

        n = (size_t)snprintf(out, size, "%.*s", len, word);
        break;
    }
    }
    return n;
}

void config_print(FILE *out) {
    const char *section = "";

    fprintf(
        out,
        "# Configuration of weftd. Every key with its default; each is also a flag: --key VALUE.\n"
        "# Sizes take K, M and G. Keys marked (reload) are applied by SIGHUP.\n");
    for (uint32_t i = 0; i < config_table_n; i++) {
        const struct option *o = &config_table[i];

        if (strcmp(section, o->section) != 0)
            fprintf(out, "\n[%s]\n", o->section);
        section = o->section;
        fprintf(out, "\n# %s", o->help);
        if (o->choices && o->type != OPTION_UINT)
            fprintf(out, " One of %s.", o->choices);
        fprintf(out, "%s\n#%s =%s%s\n", o->reloads ? " (reload)" : "", o->key,
                *o->initial ? " " : "", o->initial);
    }
}

/* Prints @text, indented and broken between words. */
static void print_wrapped(FILE *out, const char *text, size_t indent) {
    size_t column = 0;

    while (*text) {
        size_t len = strcspn(text, " ");

        if (column && column + 1 + len > HELP_COLUMNS) {
            fputc('\n', out);
            column = 0;
        }
        column += (size_t)fprintf(out, "%*s%.*s", column ? 1 : (int)indent, "", (int)len, text);
        text += len + (text[len] == ' ');
    }
    fputc('\n', out);
}

/* Returns the placeholder for the value of @o in --help: its words, or its kind. */
static const char *value_name(const struct option *o) {
    static const char *const names[] = {
        [OPTION_STRING] = "TEXT", [OPTION_LIST] = "A,B,...", [OPTION_UINT] = "N",
        [OPTION_SIZE] = "SIZE",   [OPTION_BOOL] = "yes|no",
    };

    if (o->choices && o->type != OPTION_UINT)
        return o->choices;
    return names[o->type];
}

void config_help(FILE *out) {
    const char *section = "";

    fprintf(
        out,
        "usage: weftd --model FILE [--config FILE] [--KEY VALUE ...]\n"
        "       weftd [...] --check-config | --print-config | --version | --help\n\n"
        "Serves GGUF models through the HTTP APIs of OpenAI, Anthropic, Ollama, llama-server and\n"
        "LM Studio. Example:\n\n"
        "  weftd --model qwen.gguf --listen 127.0.0.1:8080 --admin-socket weft.sock\n\n"
        "  --config FILE\n      Read options from this INI file; flags win.\n"
        "  --check-config\n      Check options, files, memory and ports as a start does, and "
        "exit.\n"
        "  --print-config\n      Print a configuration file with every key at its default.\n");
    for (uint32_t i = 0; i < config_table_n; i++) {
        const struct option *o = &config_table[i];

        if (strcmp(section, o->section) != 0)
            fprintf(out, "\n[%s]\n", o->section);
        section = o->section;
        fprintf(out, "  --%s %s", o->key, value_name(o));
        if (*o->initial && strcmp(o->initial, "0") != 0)
            fprintf(out, " (%s)", o->initial);
        fputc('\n', out);
        print_wrapped(out, o->help, 6);
    }
    fputs("\nOptions of llama-server (-m, -c, -ngl, -np, --host, --port, ...) are understood,\n"
          "too. Defaults are in parentheses. SIZE takes K, M and G. Signals: HUP reads keys,\n"
          "tenants and log-level again, TERM lets running streams finish. Exit codes: 0;\n"
          "75 trying again may help; 78 configuration or model cannot be used.\n",
          out);
}

/* ---- suggestions for unknown names ---- */

/* Names that other servers use for weft's options. */
static const struct {
    const char *theirs, *ours;
} foreign[] = {
    {"alias", "model-name"},
    {"served-model-name", "model-name"},
    {"chat-template-file", "chat-template"},
    {"reasoning-budget", "reasoning"},
    {"model-draft", "draft-model"},
    {"host", "listen"},
    {"port", "listen"},
    {"api-key", "api-keys"},
    {"api-key-file", "api-keys"},
    {"ctx-size", "max-context"},
    {"max-model-len", "max-context"},
    {"parallel", "max-seqs"},
    {"max-num-seqs", "max-seqs"},
    {"batch-size", "max-batch-rows"},
    {"cache-type-k", "kv-type-k"},
    {"cache-type-v", "kv-type-v"},
    {"kv-cache-dtype", "kv-type"},
    {"gpu-memory-utilization", "kv-memory"},
    {"n-gpu-layers", "backend"},
    {"device", "devices"},
    {"tensor-parallel-size", "devices"},
    {"cpu-moe", "host-experts"},
    {"n-cpu-moe", "host-experts"},
    {"verbose", "log-level"},
    {"ssl-certfile", "tls-certificate"},
    {"ssl-cert-file", "tls-certificate"},
    {"ssl-certificate", "tls-certificate"},
    {"ssl-keyfile", "tls-key"},
    {"ssl-key-file", "tls-key"},
    {"ssl-certificate-key", "tls-key"},
};

const char *config_meant(const char *name) {
    struct meant m;

    for (size_t i = 0; i < ARRAY_SIZE(foreign); i++)
        if (strcmp(foreign[i].theirs, name) == 0)
            return foreign[i].ours;
    meant_init(&m, name);
    for (uint32_t i = 0; i < config_table_n; i++)
        meant_try(&m, config_table[i].key);
    return m.name;
}
