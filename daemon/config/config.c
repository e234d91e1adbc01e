/*
 * Values from each source pass through config_set_option(): a line of a file, a flag, an option
 * sent to the worker, a reload. All accept the same values, with the same error messages. An option
 * keeps its value if the new one is refused, except a list, which may be cut short: the caller then
 * discards the whole configuration.
 */

#include "daemon/config/config.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/un.h>

#include "base/gguf_override.h"
#include "base/printable.h"
#include "base/try.h"
#include "daemon/config/keyfile.h"

#define PLACE_PATH_MAX 150u /* most bytes of a path in a message, which its reason shares */

/* ---- values ---- */

/* Replaces the string at *@at by a copy of @text. Returns 0, or -ENOMEM with *@at unchanged. */
static int config_set_string(char **at, const char *text) {
    char *copy = strdup(text);

    if (!copy)
        return -ENOMEM;
    free(*at);
    *at = copy;
    return 0;
}

/* Frees the entries and leaves an empty list. */
static void clear_list(char **list) {
    for (; *list; list++) {
        free(*list);
        *list = NULL;
    }
}

/* Replaces the entries of @list by those of @text. Returns 0, or -errno with @err, and then @list
 * may be cut short. */
static int config_set_list(char **list, const char *text, const char *key, struct err *err) {
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

/* Reads a decimal number, followed by K, M or G if @size. Returns 0 or -EINVAL. */
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
        const char *u = memchr(units, *end & ~0x20, strlen(units));

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

/* Reads a word that stands for true or false. Returns 0, or -EINVAL for any other word. */
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

/* Returns the index of @text among @choices, or -1. */
static int choice_of(const char *choices, const char *text) {
    size_t len = strlen(text);
    int i = 0;

    for (const char *p = choices; *p; p += strcspn(p, "|"), p += *p == '|', i++)
        if (strcspn(p, "|") == len && memcmp(p, text, len) == 0)
            return i;
    return -1;
}

/* Stores @v in the field of @o at @at; the table's ranges were checked against the sizes of the
 * fields. The field takes the low bytes of a little-endian number. */
static void config_store(const struct option *o, char *at, uint64_t v) {
    assert(o->size == 8 || v >> 8 * o->size == 0);
    memcpy(at, &v, o->size);
}

struct size_text {
    char s[24];
};

/* Returns @v in the largest unit of which it is a multiple, as parse_uint() reads it. */
static struct size_text config_size_text(uint64_t v) {
    static const char *const units[] = {"", "K", "M", "G"};
    struct size_text t;
    int unit = 0;

    for (; unit < 3 && v && v % 1024 == 0; unit++)
        v /= 1024;
    snprintf(t.s, sizeof(t.s), "%llu%s", (unsigned long long)v, units[unit]);
    return t;
}

/* Says which numbers @o takes instead of @text. Returns -EINVAL. */
static int config_refuse_number(const struct option *o, const char *text, struct err *err) {
    if (o->type == OPTION_SIZE)
        return err_set(err, 0, o->key,
                       "%s: must be a size from %s to %s, such as 512M or 4G, not \"%s\"", o->key,
                       config_size_text(o->min).s, config_size_text(o->max).s, text);
    return err_set(err, 0, o->key, "%s: must be a whole number from %llu to %llu, not \"%s\"",
                   o->key, (unsigned long long)o->min, (unsigned long long)o->max, text);
}

/* Stores @text if it is a number, or size, in the range of @o. Returns 0 or -EINVAL with @err. */
static int config_set_number(const struct option *o, char *at, const char *text, struct err *err) {
    uint64_t v;

    if (parse_uint(text, o->type == OPTION_SIZE, &v) < 0 || v < o->min || v > o->max)
        return config_refuse_number(o, text, err);
    config_store(o, at, v);
    return 0;
}

/* Rejects values of users that a shell would have changed: a leading ~, and quotes around the text.
 * Names of files that come from config_set() may have both. */
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

/* Checks @text and sets option @o to it. Returns 0, or -errno with @err, which may be NULL, and
 * nothing changed. */
static int config_set_option(struct config *c, const struct option *o, const char *text,
                             struct err *err) {
    char *at = (char *)c + o->offset;
    int choice = o->choices ? choice_of(o->choices, text) : 0;

    if (strlen(text) >= CONFIG_VALUE_MAX)
        return err_set(err, 0, o->key, "%s: is longer than %d bytes", o->key, CONFIG_VALUE_MAX - 1);
    if (choice < 0 && o->type != OPTION_UINT)
        return err_set(err, 0, o->key, "%s: must be one of %s, not \"%s\"", o->key, o->choices,
                       text);
    switch (o->type) {
    case OPTION_STRING:
        return config_set_string((char **)(void *)at, text);
    case OPTION_LIST:
        return config_set_list((char **)(void *)at, text, o->key, err);
    case OPTION_UINT:
        if (o->choices && choice == 0) {
            config_store(o, at, o->max);
            return 0;
        }
        return config_set_number(o, at, text, err);
    case OPTION_SIZE:
        return config_set_number(o, at, text, err);
    case OPTION_BOOL:
        if (parse_bool(text, (bool *)at) < 0)
            return err_set(err, 0, o->key, "%s: must be yes or no, not \"%s\"", o->key, text);
        return 0;
    case OPTION_CHOICE:
        assert(choice < 2 || o->size > sizeof(bool));
        config_store(o, at, (uint64_t)choice);
        return 0;
    }
    return -EINVAL;
}

/* Returns the row of @key; NULL: there is none. The search is linear: the table has some sixty rows
 * and is used at start and reload only. */
static const struct option *config_find(const char *key) {
    for (uint32_t i = 0; i < config_table_n; i++)
        if (strcmp(config_table[i].key, key) == 0)
            return &config_table[i];
    return NULL;
}

bool config_has(const char *key, size_t len) {
    for (uint32_t i = 0; i < config_table_n; i++)
        if (strlen(config_table[i].key) == len && memcmp(config_table[i].key, key, len) == 0)
            return true;
    return len == strlen("config") && memcmp(key, "config", len) == 0;
}

uint64_t config_most(const char *key) {
    const struct option *o = config_find(key);

    assert(o);
    return o->max;
}

int config_init(struct config *c) {
    memset(c, 0, sizeof(*c));
    for (uint32_t i = 0; i < config_table_n; i++)
        TRY(config_set_option(c, &config_table[i], config_table[i].initial, NULL));
    return 0;
}

void config_deinit(struct config *c) {
    for (uint32_t i = 0; i < config_table_n; i++) {
        const struct option *o = &config_table[i];
        char **at = (char **)(void *)((char *)c + o->offset);

        if (o->type == OPTION_LIST) {
            clear_list(at);
        } else if (o->type == OPTION_STRING) {
            free(*at);
            *at = NULL;
        }
    }
    free(c->file);
    free(c->lines);
    c->file = NULL;
    c->lines = NULL;
}

/* Refuses a name that is no option: a key, or a flag with its @dashes. Returns -EINVAL. */
static int config_unknown(const char *dashes, const char *name, const char *what, struct err *err) {
    const char *meant = config_meant(name);

    if (meant)
        return err_set(err, 0, name, "%s%.60s: unknown %s; is %s%s meant?", dashes, name, what,
                       *dashes ? "--" : "", meant);
    return err_set(err, 0, name, "%s%.60s: unknown %s (weftd --help lists all)", dashes, name,
                   what);
}

/* ---- file ---- */

/* Takes one line of a file. A key may occur once, because of two lines one would have no effect. */
static int config_on_pair(void *ctx, uint32_t line, const char *section, const char *name,
                          const char *value, struct err *err) {
    const struct option *o = config_find(name);
    struct config *c = ctx;

    if (!o)
        return config_unknown("", name, "key", err);
    if (!*section)
        return err_set(err, 0, name, "%s: needs the line [%s] above it", name, o->section);
    if (strcmp(o->section, section) != 0)
        return err_set(err, 0, name, "%s: belongs in section [%s], not [%s]", name, o->section,
                       section);
    if (strstr(value, " #"))
        return err_set(err, 0, name, "%s: a comment needs a line of its own", name);
    if (c->lines[o - config_table])
        return err_set(err, 0, name, "%s: is set by an earlier line, too; %s", name,
                       o->type == OPTION_LIST ? "give all values in one, separated by commas"
                                              : "remove one of them");
    c->lines[o - config_table] = line;
    TRY(check_shell(o, value, err));
    return config_set_option(c, o, value, err);
}

static int config_parse_file(struct config *c, const char *path, const char *param,
                             keyfile_pair pair, struct err *err) {
    free(c->file);
    free(c->lines);
    c->file = strdup(path);
    c->lines = calloc(config_table_n, sizeof(*c->lines));
    if (!c->file || !c->lines)
        return -ENOMEM;
    return keyfile_read(path, param, pair, c, err);
}

void config_add_place(const struct config *c, struct err *err) {
    const struct option *o = config_find(err->param);
    struct err e = *err;

    if (!o || !c->lines || !c->lines[o - config_table])
        return;
    int n = (int)MIN(strlen(c->file), PLACE_PATH_MAX);
    if (strncmp(e.message, c->file, (size_t)n) != 0)
        err_set(err, e.status, e.param, "%.*s:%u: %s", n, c->file, c->lines[o - config_table],
                e.message);
}

int config_read_file(struct config *c, const char *path, struct err *err) {
    return config_parse_file(c, path, "config", config_on_pair, err);
}

/* Takes one line of a preset. */
static int on_preset_pair(void *ctx, uint32_t line, const char *section, const char *name,
                          const char *value, struct err *err) {
    static const char *const shared[] = {"any-model-name", "models",  "models-dir",
                                         "models-memory",  "kv-disk", "prewarm"};
    const struct option *o = config_find(name);
    bool of_model = o && (strcmp(o->section, "model") == 0 || strcmp(o->section, "engine") == 0);

    for (size_t i = 0; i < ARRAY_SIZE(shared); i++)
        of_model &= strcmp(name, shared[i]) != 0;
    if (o && !of_model)
        return err_set(err, 0, name,
                       "%s: cannot be set in a preset; set it in the configuration of weftd", name);
    return config_on_pair(ctx, line, o && !*section ? o->section : section, name, value, err);
}

int config_read_preset(struct config *c, const char *path, struct err *err) {
    return config_parse_file(c, path, "models", on_preset_pair, err);
}

/* ---- flags ---- */

/* Splits flag argv[*i] into @key and its value, which stands behind '=' or is the next argument. */
static int flag_value(int argc, char **argv, int *i, char *key, size_t size, const char **value,
                      struct err *err) {
    const char *arg = argv[*i];

    if (arg[0] != '-')
        return err_set(err, 0, "", "%s: not an option; a model is given with --model FILE", arg);
    if (arg[1] != '-')
        return config_unknown("-", arg + 1, "option", err);
    size_t len = strcspn(arg + 2, "=");
    if (len >= size)
        return err_set(err, 0, "", "%.40s...: unknown option", arg);
    memcpy(key, arg + 2, len);
    key[len] = 0;
    if (arg[2 + len] == '=') {
        *value = arg + 2 + len + 1;
    } else if (strcmp(key, "config") != 0 && !config_find(key)) {
        return config_unknown("--", key, "option", err);
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
    char joined[CONFIG_VALUE_MAX];

    if (c->lines)
        c->lines[o - config_table] = 0;
    TRY(check_shell(o, value, err));
    if (o->type != OPTION_LIST || !again)
        return config_set_option(c, o, value, err);
    size_t n = config_value(c, o, joined, sizeof(joined));
    if (n + strlen(value) + 2 > sizeof(joined))
        return err_set(err, 0, o->key, "--%s: too long", o->key);
    snprintf(joined + n, sizeof(joined) - n, ",%s", value);
    return config_set_option(c, o, joined, err);
}

/* Reads the flags: with @config_only only the files of --config, else only the other flags. */
static int read_flags(struct config *c, int argc, char **argv, bool config_only, struct err *err) {
    CLEANUP(freep) bool *seen = calloc(config_table_n, sizeof(*seen));

    if (!seen)
        return -ENOMEM;

    for (int i = 1; i < argc; i++) {
        char key[64];
        const char *value = "";

        TRY(flag_value(argc, argv, &i, key, sizeof(key), &value, err));
        const struct option *o = config_find(key);
        bool is_config = strcmp(key, "config") == 0;
        if (!o && !is_config)
            return config_unknown("--", key, "option", err);
        if (is_config && config_only)
            TRY(config_read_file(c, value, err));
        if (o && !config_only)
            TRY(set_flag(c, o, value, seen[o - config_table], err));
        if (o)
            seen[o - config_table] = true;
    }
    return 0;
}

int config_read_args(struct config *c, int argc, char **argv, struct err *err) {
    TRY(read_flags(c, argc, argv, true, err));
    return read_flags(c, argc, argv, false, err);
}

const char *config_without_tls(const char *address) {
    return address + (strncmp(address, "tls:", 4) == 0 ? 4 : 0);
}

/* Returns true if the @n bytes at @host are "localhost", "*", an address of version 4, or one of
 * version 6 in brackets. */
static bool is_host(const char *host, size_t n) {
    char text[256];
    struct in6_addr addr;
    bool bracket = *host == '[';

    if (n >= sizeof(text) || (bracket && host[n - 1] != ']'))
        return false;
    memcpy(text, host, n);
    text[bracket ? n - 1 : n] = 0;
    if (bracket) {
        text[strcspn(text, "%")] = 0; /* cuts off the interface of a link-local address */
        return inet_pton(AF_INET6, text + 1, &addr) == 1;
    }
    return strcmp(text, "localhost") == 0 || strcmp(text, "*") == 0 ||
           inet_pton(AF_INET, text, &addr) == 1;
}

/* Returns true if @address has the form that main.c listens on; binding main.c may still fail to
 * bind it. */
static bool is_address(const char *address) {
    const char *at = config_without_tls(address), *colon = strrchr(at, ':');
    uint64_t port;

    return strncmp(address, "unix:", 5) == 0 ||
           (colon && is_host(at, (size_t)(colon - at)) &&
            parse_uint(colon + 1, false, &port) == 0 && port <= 65535);
}

/* Returns true for a listen address that only this machine reaches. */
static bool config_is_loopback(const char *address) {
    static const char *const local[] = {"unix:", "127.", "localhost:", "[::1]:"};

    for (size_t i = 0; i < ARRAY_SIZE(local); i++)
        if (strncmp(config_without_tls(address), local[i], strlen(local[i])) == 0)
            return true;
    return false;
}

/* Returns the number of the draft source @name in msg_draft_source[]; -1: there is no such
 * source. */
static int config_source(const char *name) {
    for (int i = 0; i < MSG_DRAFT_SOURCES; i++)
        if (strcmp(msg_draft_source[i], name) == 0)
            return i;
    return -1;
}

uint32_t config_no_sources(const struct config *c) {
    uint32_t out = (1u << MSG_DRAFT_SOURCES) - 1;

    for (char *const *name = c->draft_sources; *name; name++) {
        assert(config_source(*name) >= 0);
        out &= ~(1u << config_source(*name));
    }
    return out;
}

bool config_drafts_from(const struct config *c, const char *name) {
    for (char *const *p = c->draft_sources; *p; p++)
        if (strcmp(*p, name) == 0)
            return true;
    return false;
}

/* Checks the names of draft sources, which the worker uses, so both sides of the channel check
 * them. */
static int check_sources(const struct config *c, struct err *err) {
    for (char *const *name = c->draft_sources; *name; name++)
        if (config_source(*name) < 0)
            return err_set(err, 0, "draft-sources",
                           "draft-sources: unknown source %s; the sources are forced, prediction, "
                           "suffix, recent, model and mtp",
                           *name);
    return 0;
}

/* Checks the form of values that replace those of the model file. */
static int check_overrides(const struct config *c, struct err *err) {
    for (char *const *text = c->override_kv; *text; text++)
        TRY(gguf_override_check(*text, err));
    return 0;
}

int config_override(const struct config *c, struct gguf *g, struct err *err) {
    for (char *const *text = c->override_kv; *text; text++)
        TRY(gguf_override(g, *text, err));
    return 0;
}

int config_set(struct config *c, const char *key, const char *text, struct err *err) {
    const struct option *o = config_find(key);

    assert(o);
    return config_set_option(c, o, text, err);
}

int config_copy(struct config *to, const struct config *from, const struct option *o) {
    char value[CONFIG_VALUE_MAX];

    assert(o >= config_table && o < config_table + config_table_n);
    config_value(from, o, value, sizeof(value));
    return config_set_option(to, o, value, NULL);
}

int config_clone(struct config *to, const struct config *from) {
    TRY(config_init(to));
    for (uint32_t i = 0; i < config_table_n; i++)
        TRY(config_copy(to, from, &config_table[i]));
    return 0;
}

int config_pack(const struct config *c, const char *section, struct buf *out) {
    char value[CONFIG_VALUE_MAX];

    for (uint32_t i = 0; i < config_table_n; i++) {
        const struct option *o = &config_table[i];

        if (strcmp(o->section, section) != 0)
            continue;
        size_t n = config_value(c, o, value, sizeof(value));
        assert(n < sizeof(value)); /* ensured by config_set_option() */
        TRY(buf_add(out, o->key, strlen(o->key) + 1));
        TRY(buf_add(out, value, n + 1));
    }
    return 0;
}

int config_unpack(struct config *c, const char *data, size_t len) {
    const char *end = data + len;
    struct err err;

    assert(data || len == 0);
    while (data < end) {
        const char *value = memchr(data, 0, (size_t)(end - data));
        const struct option *o = value ? config_find(data) : NULL;
        const char *next = o ? memchr(value + 1, 0, (size_t)(end - value - 1)) : NULL;
        int r = next ? config_set_option(c, o, value + 1, &err) : -EPROTO;

        if (r < 0) {
            if (r != -ENOMEM)
                return -EPROTO;
            return r;
        }
        data = next + 1;
    }
    if (check_sources(c, &err) < 0)
        return -EPROTO;
    return 0;
}

/* Refuses the path of a UNIX socket for which struct sockaddr_un has no room. */
static int check_socket(const char *key, const char *path, struct err *err) {
    size_t most = sizeof(((struct sockaddr_un *)0)->sun_path) - 1;

    if (!*path)
        return err_set(err, 0, key, "%s: unix: needs the path of a socket", key);
    if (strlen(path) > most)
        return err_set(err, 0, key, "%s: the path of a socket has at most %zu bytes, not %zu", key,
                       most, strlen(path));
    return 0;
}

/* Refuses what a user may paste in place of a host name and what no request would ever match. */
static int check_hosts(const char *key, char *const *hosts, bool has_port, struct err *err) {
    for (; *hosts; hosts++)
        if (strchr(*hosts, '/') || (!has_port && **hosts != '[' && strchr(*hosts, ':')))
            return err_set(err, 0, key,
                           "%s: must be the name of a host%s, such as gpu.lan, not \"%.150s\"", key,
                           has_port ? ", perhaps with :PORT" : " alone", *hosts);
    return 0;
}

/* Refuses an origin that no browser sends: one without a scheme, or with a path. "localhost" is
 * llama-server's word for the pages of this machine, which are allowed in any case. */
static int check_origins(const struct config *c, struct err *err) {
    static const char *const words[] = {"*", "null", "localhost"};

    for (char *const *origin = c->cors_origins; *origin; origin++) {
        const char *host = strstr(*origin, "://"), *star = strchr(*origin, '*');
        bool is_word = false;

        for (size_t i = 0; i < ARRAY_SIZE(words); i++)
            is_word |= strcmp(*origin, words[i]) == 0;
        if (!is_word && (!host || strchr(host + 3, '/')))
            return err_set(err, 0, "cors-origins",
                           "cors-origins: must be * or SCHEME://HOST[:PORT], such as "
                           "https://chat.example.com, not \"%.150s\"",
                           *origin);
        if (star && strchr(star + 1, '*'))
            return err_set(err, 0, "cors-origins",
                           "cors-origins: an origin has at most one *, not as \"%.150s\"", *origin);
    }
    return 0;
}

int config_check(const struct config *c, struct err *err) {
    if (!*c->model && !*c->models && !*c->models_dir)
        return err_set(err, 0, "model",
                       "model: none is given (weftctl models lists those of this machine): --model "
                       "FILE, or model = FILE below [model] in the "
                       "file of --config");
    if (!is_printable(c->model_name))
        return err_set(err, 0, "model-name",
                       "model-name: must be text in UTF-8 without control characters");
    if (c->engine.page_tokens != 16 && c->engine.page_tokens != 32 && c->engine.page_tokens != 64)
        return err_set(err, 0, "page-tokens", "page-tokens: must be 16, 32 or 64, not %u",
                       c->engine.page_tokens);
    if (!c->listen[0])
        return err_set(err, 0, "listen",
                       "listen: at least one address is needed, such as 127.0.0.1:8080");
    for (char *const *l = c->listen; *l; l++) {
        if (!is_address(*l))
            return err_set(err, 0, "listen",
                           "listen: must be ADDRESS:PORT, such as 127.0.0.1:8080, [IPv6]:PORT, "
                           "tls:ADDRESS:PORT or unix:PATH, with a port of at most 65535, not "
                           "\"%.150s\"",
                           *l);
        if (strncmp(*l, "unix:", 5) == 0)
            TRY(check_socket("listen", *l + 5, err));
        if (config_without_tls(*l) != *l && !*c->tls_certificate)
            return err_set(err, 0, "tls-certificate",
                           "tls-certificate: must be set, because listen has %s", *l);
        if (!config_is_loopback(*l) && !*c->api_keys && !c->anonymous)
            return err_set(err, 0, "listen",
                           "listen: %s is reachable from other machines: add --api-key KEY, or "
                           "--anonymous yes to serve everyone (in a file: api-keys, anonymous)",
                           *l);
    }
    if (*c->admin_socket)
        TRY(check_socket("admin-socket", c->admin_socket, err));
    if (!*c->tls_certificate != !*c->tls_key)
        return err_set(err, 0, "tls-key", "tls-key: must be set together with tls-certificate");
    if (!*c->kv_events && *c->kv_events_replay)
        return err_set(err, 0, "kv-events-replay",
                       "kv-events-replay: needs the address of the events: set kv-events, too");
    if (*c->kv_events && strcmp(c->kv_events, c->kv_events_replay) == 0)
        return err_set(err, 0, "kv-events-replay",
                       "kv-events-replay: must be another address than kv-events");
    if (c->engine.max_seqs > c->engine.max_rows)
        return err_set(err, 0, "max-seqs",
                       "max-seqs: is %u, which must not be more than max-batch-rows, %u",
                       c->engine.max_seqs, c->engine.max_rows);
    TRY(check_hosts("allowed-hosts", c->hosts, false, err));
    TRY(check_hosts("picture-hosts", c->picture_hosts, true, err));
    TRY(check_origins(c, err));
    TRY(check_overrides(c, err));
    return check_sources(c, err);
}

enum log_level config_log_level(const struct config *c) {
    static const enum log_level levels[] = {WLOG_ERROR, WLOG_WARN, WLOG_INFO, WLOG_DEBUG};

    assert(c->log_level < ARRAY_SIZE(levels));
    return levels[c->log_level];
}
