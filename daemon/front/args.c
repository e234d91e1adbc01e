/*
 * Each argument is weftd's own option, a row of llama_options.c, or unknown. A name that both
 * programs have is weftd's, unless it has a row. Options that depend on each other (-c and -np,
 * --host and --port) are collected and added at the end. Variables of the environment are read
 * first, as a command line of their own; the real one may complete its pairs (a container often has
 * LLAMA_ARG_HOST in its environment and --port on its command line).
 */

#include "daemon/front/args.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/files.h"
#include "base/model_dir.h"
#include "base/printable.h"
#include "base/try.h"
#include "checkpoint/checkpoint.h"
#include "daemon/front/environment.h"
#include "daemon/front/llama_options.h"

#define NOTES_MAX (64u << 10)

struct reading {
    struct args *a;
    int argc;
    char **argv;
    int i;
    /* result: 0 or -ENOMEM */
    int r;
    struct args_pairs *p;
    /* bytes of the keys so far */
    off_t keys_end;
};

/* Appends the argument that printf() makes of @fmt. */
static void PRINTF(2, 3) args_add(struct reading *d, const char *fmt, ...) {
    struct args *a = d->a;
    va_list ap;

    if (d->r < 0)
        return;
    char **v = reallocarray(a->v, (size_t)a->n + 2, sizeof(*v));
    if (v)
        a->v = v;
    va_start(ap, fmt);
    if (!v || vasprintf(&v[a->n], fmt, ap) < 0)
        d->r = -ENOMEM;
    else
        v[++a->n] = NULL;
    va_end(ap);
}

/* Notes that option @name cannot be used, and the remedy. */
static void PRINTF(3, 4) args_refuse(struct reading *d, const char *name, const char *fmt, ...) {
    char text[400];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    d->a->n_refused++;
    buf_printf(&d->a->refused, "%.*s: %s\n", (int)strcspn(name, "="), name, text);
}

/* Notes what becomes of option @name, which is accepted. */
static void PRINTF(3, 4) args_note(struct reading *d, const char *name, const char *fmt, ...) {
    char text[400];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    buf_printf(&d->a->noted, "%.*s: %s\n", (int)strcspn(name, "="), name, text);
}

/* Notes that option @name is not needed. */
static void pass_over(struct reading *d, const char *name) {
    buf_printf(&d->a->here, "%s%.*s", d->a->here.len ? ", " : "", (int)strcspn(name, "="), name);
}

static bool is_own(const char *arg) {
    return strncmp(arg, "--", 2) == 0 && config_has(arg + 2, strcspn(arg + 2, "="));
}

/* Returns the value of the option at d->i: behind '=', or the next argument. NULL, with a note, if
 * there is none. */
static const char *value(struct reading *d) {
    const char *name = d->argv[d->i], *equals = strchr(name, '=');

    if (equals)
        return equals + 1;
    if (d->i + 1 < d->argc)
        return d->argv[++d->i];
    args_refuse(d, name, "needs a value");
    return NULL;
}

/* Skips the value of a switch, which may have none. */
static void skip_switch(struct reading *d) {
    static const char *const words[] = {"on",   "off",   "auto", "0",    "1",
                                        "true", "false", "True", "False"};
    const char *next = d->i + 1 < d->argc ? d->argv[d->i + 1] : "";

    for (size_t i = 0; i < ARRAY_SIZE(words); i++)
        if (strcmp(next, words[i]) == 0) {
            d->i++;
            return;
        }
}

/* Reads a whole number of at most 32 bits; returns false and adds a note for any other text. */
static bool args_number(struct reading *d, const char *name, const char *text, uint64_t *out) {
    char *end;
    unsigned long long n = strtoull(text, &end, 10);

    bool is_number = *text >= '0' && *text <= '9' && !*end;

    if (!is_number || n > UINT32_MAX) {
        args_refuse(d, name, "\"%.60s\" is %s", text,
                    is_number ? "too large" : "not a whole number");
        return false;
    }
    *out = n;
    return true;
}

/* Adds "--listen ADDRESS,..." from --host and --port; hosts are separated by commas. */
static void add_listen(struct reading *d) {
    const char *host = d->p->host ? d->p->host : "127.0.0.1";
    unsigned long long port = d->p->has_port ? d->p->port : 8080;
    CLEANUP(buf_deinit)
    struct buf list = {.max = UINT32_MAX}; /* as long as the command line allows */

    if (!d->p->names_address)
        return;
    for (size_t n; *host; host += n + (host[n] == ',')) {
        const char *comma = list.len ? "," : "", *tls = d->p->tls ? "tls:" : "";
        int r;

        n = strcspn(host, ",");
        if (n > 5 && memcmp(host + n - 5, ".sock", 5) == 0)
            r = buf_printf(&list, "%sunix:%.*s", comma, (int)n, host);
        else if (memchr(host, ':', n))
            r = buf_printf(&list, "%s%s[%.*s]:%llu", comma, tls, (int)n, host, port);
        else
            r = buf_printf(&list, "%s%s%.*s:%llu", comma, tls, (int)n, host, port);
        if (r < 0)
            d->r = r;
    }
    args_add(d, "--listen=%s", list.len ? list.data : "");
}

/* Adds the length of the longest request and the number of requests. llama-server divides -c among
 * the slots of -np. */
static void add_context(struct reading *d) {
    const struct args_pairs *p = d->p;
    uint64_t context = p->context;

    if (!p->names_context)
        return;
    if (p->parallel) {
        args_add(d, "--max-seqs=%llu", (unsigned long long)p->parallel);
        args_add(d, "--max-running=%llu", (unsigned long long)p->parallel);
    }
    if (p->parallel && !p->unified)
        context = (context + p->parallel - 1) / p->parallel;
    if (p->has_context)
        args_add(d, "--max-context=%llu", (unsigned long long)context);
}

/* Adds the keys of an --api-key, separated by commas, to a file without a name, since weftd reads
 * them again when it reloads. */
static void args_add_keys(struct reading *d, const char *keys) {
    static int fd = -1; /* open as long as the process runs: a reload gets the same path */

    if (fd < 0 && (fd = memfd_create("api-keys", MFD_CLOEXEC)) < 0) {
        d->r = -errno;
        return;
    }
    CLEANUP(freep) char *lines = NULL;
    int n = asprintf(&lines, "%s\n", keys);
    for (char *p = n < 0 ? NULL : lines; p && (p = strchr(p, ','));)
        *p = '\n';
    if (n < 0 || fchmod(fd, 0600) < 0 || ftruncate(fd, d->keys_end) < 0 ||
        pwrite(fd, lines, (size_t)n, d->keys_end) != n)
        d->r = -ENOMEM;
    d->keys_end += n;
    args_add(d, "--api-keys=/proc/self/fd/%d", fd);
}

/* Adds a number, lowered to the most that option @key takes. */
static void add_at_most(struct reading *d, const char *name, const char *key, const char *text) {
    uint64_t n, most = config_most(key);

    if (*text == '-' || strcmp(text, "0") == 0) {
        if (strcmp(key, "max-draft") == 0)
            args_add(d, "--speculation=off");
        return;
    }
    if (!args_number(d, name, text, &n))
        return;
    if (n > most)
        args_note(d, name, "%llu is more than weftd uses: %llu", (unsigned long long)n,
                  (unsigned long long)most);
    args_add(d, "--%s=%llu", key, (unsigned long long)MIN(n, most));
}

/* Adds a length, which may have the unit k (1,000) or K (1,024). */
static void add_length(struct reading *d, const char *name, const char *key, const char *text) {
    char digits[24];
    uint64_t n, unit = 1;
    size_t len = strlen(text);

    if (*text == '-' || strcmp(text, "auto") == 0)
        return;
    if (len > 1 && len < sizeof(digits) && (text[len - 1] == 'k' || text[len - 1] == 'K'))
        unit = text[--len] == 'k' ? 1000 : 1024;
    snprintf(digits, sizeof(digits), "%.*s", (int)len, text);
    if (args_number(d, name, unit > 1 ? digits : text, &n))
        args_add(d, "--%s=%llu", key, (unsigned long long)(n * unit));
}

/* Names the first devices, of which there are as many as @text says. */
static void args_add_shards(struct reading *d, const char *name, const char *text) {
    char list[64] = "0";
    uint64_t n;

    if (!args_number(d, name, text, &n) || n == 1)
        return;
    if (n == 0 || n > CONFIG_LIST_MAX) {
        args_refuse(d, name, "--devices 0,1 names the devices that share the model");
        return;
    }
    for (uint64_t i = 1; i < n; i++)
        snprintf(list + strlen(list), sizeof(list) - strlen(list), ",%llu", (unsigned long long)i);
    args_add(d, "--devices=%s", list);
}

/* Names devices that llama-server calls CUDA0,CUDA1. */
static void args_add_devices(struct reading *d, const char *name, const char *advice,
                             const char *text) {
    char list[64] = "";

    if (strcmp(text, "none") == 0 || strcasecmp(text, "cpu") == 0) {
        args_add(d, "--backend=cpu");
        return;
    }
    for (const char *at = text; *at; at += strcspn(at, ","), at += *at == ',') {
        const char *digits = strncasecmp(at, "cuda", 4) == 0 ? at + 4 : at;
        size_t n = strspn(digits, "0123456789");

        if (n == 0 || n > 3 || (digits[n] && digits[n] != ',') || strlen(list) + 5 > sizeof(list)) {
            args_refuse(d, name, "%s", advice);
            return;
        }
        snprintf(list + strlen(list), sizeof(list) - strlen(list), "%s%.*s", *list ? "," : "",
                 (int)n, digits);
    }
    args_add(d, "--devices=%s", list);
}

/* Accepts a list PATTERN=BUFFER of experts that stay in host memory, or of what goes to a device:
 * weftd decides both. */
static void add_tensors(struct reading *d, const char *name, const char *advice, const char *text) {
    bool experts = false;

    for (const char *at = text; *at; at += strcspn(at, ","), at += *at == ',') {
        size_t len = strcspn(at, ",");
        const char *equals = memrchr(at, '=', len);
        bool to_cpu = equals && strncasecmp(equals + 1, "cpu", 3) == 0;
        bool of_experts = equals && memmem(at, (size_t)(equals - at), "exps", 4);

        if (!equals || (to_cpu && !of_experts)) {
            args_refuse(d, name, "%s", advice);
            return;
        }
        experts |= to_cpu;
    }
    if (experts)
        args_note(d, name,
                  "weftd leaves as many experts in host memory as do not fit; --host-experts N "
                  "leaves those of N layers there");
    else
        pass_over(d, name);
}

static void args_add_preset(struct reading *d, const char *ours) {
    size_t len = strcspn(ours, " ");

    args_add(d, "--model=hf:%.*s", (int)len, ours);
    if (d->p->has_port)
        return;
    d->p->port = strtoull(ours + len, NULL, 10);
    d->p->has_port = d->p->names_address = true;
}

static void add_level(struct reading *d, const char *name, const char *text) {
    static const char *const levels[][2] = {
        {"critical", "error"}, {"error", "error"}, {"warning", "warn"}, {"warn", "warn"},
        {"info", "info"},      {"debug", "debug"}, {"trace", "debug"}};

    for (size_t i = 0; i < ARRAY_SIZE(levels); i++)
        if (strcasecmp(text, levels[i][0]) == 0) {
            args_add(d, "--log-level=%s", levels[i][1]);
            return;
        }
    args_refuse(d, name, "use --log-level error, warn, info or debug");
}

static void add_cache_type(struct reading *d, const char *name, const char *option,
                           const char *type) {
    if (strcmp(type, "auto") == 0 || strstr(type, "float16"))
        pass_over(d, name);
    else
        args_refuse(d, name,
                    "format %.20s does not exist here: use --%s q8_0, which has as many bits", type,
                    option);
}

/* Takes the first of the names at the arguments as the model's, and the others as aliases. */
static void add_served(struct reading *d, const char *first) {
    CLEANUP(buf_deinit) struct buf others = {.max = UINT32_MAX};

    args_add(d, "--model-name=%s", first);
    while (d->i + 1 < d->argc && d->argv[d->i + 1][0] != '-')
        buf_printf(&others, "%s%s", others.len ? "," : "", d->argv[++d->i]);
    if (others.len)
        args_add(d, "--aliases=%s", others.data);
}

static void add_kv_type(struct reading *d, const char *name, const char *option, const char *type) {
    bool known = false;

    for (size_t i = 0; i < ARRAY_SIZE(kv_types); i++)
        known |= !kv_types[i].judges && strcmp(kv_types[i].name, type) == 0;
    if (known)
        args_add(d, "--%s=%s", option, type);
    else
        args_refuse(d, name, "format %.20s does not exist here: use --%s " KV_TYPE_NAMES, type,
                    option);
}

/* Returns true if the name that begins at @a comes before the one at @b in bytewise order. */
static bool name_is_before(const char *a, const char *b) {
    size_t n_a = strcspn(a, ","), n_b = strcspn(b, ",");
    int order = memcmp(a, b, MIN(n_a, n_b));

    return order < 0 || (order == 0 && n_a < n_b);
}

/* Takes the first name in bytewise order as the model's name, as llama-server does, and the others
 * as aliases. */
static void args_add_names(struct reading *d, const char *names) {
    const char *first = names;

    for (const char *at = names; *at; at += strcspn(at, ","), at += *at == ',')
        if (*at != ',' && name_is_before(at, first))
            first = at;
    size_t n = strcspn(first, ",");
    args_add(d, "--model-name=%.*s", (int)n, first);
    if (strchr(names, ','))
        args_add(d, "--aliases=%.*s%s", (int)(first - names), names, first + n);
}

/* Returns true for a number that turns a sampler off. */
static bool is_off(const char *text) {
    char *end;
    double value = strtod(text, &end);

    return end != text && !*end && value <= 0;
}

/* Adds a size that @text gives in GiB, in whole MiB; 0 and less: nothing. */
static void args_add_gib(struct reading *d, const char *name, const char *key, const char *text) {
    char *end;
    double gib = strtod(text, &end);

    if (end == text || *end || !(fabs(gib) < UINT32_MAX))
        args_refuse(d, name, "\"%.60s\" is not a number of GiB", text);
    else if (gib > 0)
        args_add(d, "--%s=%.0fM", key, ceil(gib * 1024));
}

/* Translates options that few command lines have, and those of vLLM. */
static void translate_more(struct reading *d, const struct llama_option *o, const char *name,
                           const char *text) {
    switch (o->kind) {
    case LLAMA_OFF:
        if (is_off(text))
            pass_over(d, name);
        else
            args_refuse(d, name, "%s", o->ours);
        break;
    case LLAMA_ONE:
        if (strcmp(text, "1") == 0)
            pass_over(d, name);
        else
            args_refuse(d, name, "%s", o->ours);
        break;
    case LLAMA_MOST:
        add_at_most(d, name, o->ours, text);
        break;
    case LLAMA_TENSORS:
        add_tensors(d, name, o->ours, text);
        break;
    case LLAMA_DEVICES:
        args_add_devices(d, name, o->ours, text);
        break;
    case LLAMA_SPLIT:
        if (strcmp(text, "none") == 0)
            pass_over(d, name);
        else
            args_note(d, name, "--devices 0,1 names the devices that share the model");
        break;
    case LLAMA_LENGTH:
        add_length(d, name, o->ours, text);
        break;
    case LLAMA_SHARDS:
        args_add_shards(d, name, text);
        break;
    case LLAMA_CACHE_TYPE:
        add_cache_type(d, name, o->ours, text);
        break;
    case LLAMA_LEVEL:
        add_level(d, name, text);
        break;
    case LLAMA_GIB:
        args_add_gib(d, name, o->ours, text);
        break;
    case LLAMA_SERVED:
        add_served(d, text);
        break;
    default:
        assert(o->kind == LLAMA_REFUSED_VALUE);
        args_refuse(d, name, "%s", o->ours);
        break;
    }
}

/* Translates an option whose values mean something else in weftd. */
static void translate_value(struct reading *d, const struct llama_option *o, const char *name,
                            const char *text) {
    uint64_t n;

    switch (o->kind) {
    case LLAMA_VALUE:
        args_add(d, "--%s=%s", o->ours, text);
        break;
    case LLAMA_COUNT:
        if (*text != '-' && strcmp(text, "auto") != 0)
            args_add(d, "--%s=%s", o->ours, text);
        break;
    case LLAMA_SAMPLING:
        if (strcmp(o->ours, "seed") != 0 || *text != '-')
            args_add(d, "--sampling=%s=%s", o->ours, text);
        break;
    case LLAMA_CONTEXT:
        d->p->has_context = args_number(d, name, text, &d->p->context);
        d->p->names_context = true;
        break;
    case LLAMA_PARALLEL:
        if (*text != '-')
            args_number(d, name, text, &d->p->parallel);
        d->p->names_context = true;
        break;
    case LLAMA_HOST:
        d->p->host = text;
        d->p->names_address = true;
        break;
    case LLAMA_PORT:
        d->p->has_port = args_number(d, name, text, &d->p->port);
        d->p->names_address = true;
        break;
    case LLAMA_KEYS:
        args_add_keys(d, text);
        break;
    case LLAMA_LAYERS:
        if (strcmp(text, "0") == 0)
            args_add(d, "--backend=cpu");
        else
            pass_over(d, name);
        break;
    case LLAMA_KV_TYPE:
        add_kv_type(d, name, o->ours, text);
        break;
    case LLAMA_BUDGET:
        if (strcmp(text, "0") == 0)
            args_add(d, "--reasoning=off");
        else if (*text != '-')
            args_refuse(d, name, "send it in requests as thinking_budget");
        break;
    case LLAMA_CACHE_MIB:
        if (*text != '-' && strcmp(text, "0") != 0 && args_number(d, name, text, &n))
            args_add(d, "--host-kv-memory=%lluM", (unsigned long long)n);
        break;
    case LLAMA_REPO:
        args_add(d, "--model=%s%s", strncmp(text, "hf:", 3) == 0 ? "" : "hf:", text);
        break;
    case LLAMA_ALIAS:
        args_add_names(d, text);
        break;
    case LLAMA_CERTIFICATE:
        d->p->tls = d->p->names_address = true;
        args_add(d, "--tls-certificate=%s", text);
        break;
    case LLAMA_HERE_VALUE:
        pass_over(d, name);
        break;
    case LLAMA_NOTED_VALUE:
        args_note(d, name, "%s", o->ours);
        break;
    default:
        translate_more(d, o, name, text);
        break;
    }
}

static void args_translate_option(struct reading *d, const struct llama_option *o) {
    const char *name = d->argv[d->i], *text;

    switch (o->kind) {
    case LLAMA_HERE:
        pass_over(d, name);
        break;
    case LLAMA_HERE_SWITCH:
        pass_over(d, name);
        if (!strchr(name, '='))
            skip_switch(d);
        break;
    case LLAMA_REFUSED:
        args_refuse(d, name, "%s", o->ours);
        break;
    case LLAMA_FLAG:
        args_add(d, "--%s", o->ours);
        break;
    case LLAMA_PRESET:
        args_add_preset(d, o->ours);
        break;
    case LLAMA_UNIFIED:
        d->p->unified = true;
        pass_over(d, name);
        break;
    default:
        if ((text = value(d)))
            translate_value(d, o, name, text);
        break;
    }
}

/* Refuses an option that neither program has. The next argument is taken as its value unless it
 * begins with a dash. */
static void args_refuse_unknown(struct reading *d) {
    const char *name = d->argv[d->i];
    char bare[64];

    snprintf(bare, sizeof(bare), "%.*s", (int)strcspn(name, "="), name);
    const char *meant = config_meant(bare + strspn(bare, "-"));
    if (meant)
        args_refuse(d, name, "unknown option; is --%s meant?", meant);
    else
        args_refuse(d, name, "unknown option (weftd --help lists all)");
    if (!strchr(name, '=') && d->i + 1 < d->argc && d->argv[d->i + 1][0] != '-')
        d->i++;
}

/* Returns what is wrong with @word, which is no option but what users of other programs write. */
static const char *args_of_word(const char *word) {
    static const struct {
        const char *words, *why;
    } rows[] = {
        {" serve start ", "not an option; weftd serves at once: weftd --model FILE"},
        {" run pull list ls ps rm show stop chat models ", "a command of weftctl, not an option"},
        {" help ", "not an option; --help lists the options"},
        {" version ", "not an option; --version prints the version"},
    };
    char key[16];

    if ((size_t)snprintf(key, sizeof(key), " %s ", word) < sizeof(key)) {
        for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
            if (strstr(rows[i].words, key))
                return rows[i].why;
    }
    return "not an option; a model is given with --model FILE";
}

int args_translate(struct args *a, struct args_pairs *pairs, int argc, char **argv) {
    struct reading d = {.a = a, .p = pairs, .argc = argc, .argv = argv, .i = 1};

    *a = (struct args){
        .here = {.max = NOTES_MAX}, .noted = {.max = NOTES_MAX}, .refused = {.max = NOTES_MAX}};
    pairs->names_address = pairs->names_context = false;
    if (argc > 0)
        args_add(&d, "%s", argv[0]);
    for (; d.i < argc && d.r == 0; d.i++) {
        const char *arg = argv[d.i];
        const struct llama_option *o = llama_option_find(arg, strcspn(arg, "="));

        if (o) {
            args_translate_option(&d, o);
        } else if (is_own(arg)) {
            args_add(&d, "%s", arg);
            if (!strchr(arg, '=') && d.i + 1 < argc)
                args_add(&d, "%s", argv[++d.i]);
        } else if (*arg == '-') {
            args_refuse_unknown(&d);
        } else {
            args_refuse(&d, arg, "%s", args_of_word(arg));
        }
    }
    add_listen(&d);
    add_context(&d);
    return d.r;
}

void args_deinit(struct args *a) {
    for (int i = 0; i < a->n; i++)
        free(a->v[i]);
    free(a->v);
    buf_deinit(&a->here);
    buf_deinit(&a->noted);
    buf_deinit(&a->refused);
    *a = (struct args){0};
}

/* ---- models by name ---- */

/* Returns true if @text can only be a path. */
static bool args_is_path(const char *text) {
    return *text == '/' || *text == '.' || access(text, F_OK) == 0;
}

/* Replaces the folder @path that option @key has by the path of the GGUF file in it, unless the
 * folder itself is the model. */
static int resolve_folder(struct config *c, const char *key, const char *path, struct err *err) {
    CLEANUP(freep) char *file = NULL;
    struct err why = {0};
    uint64_t bytes;
    int r = checkpoint_find_model(path, &file, &bytes, &why);

    if (r == -EINVAL)
        return err_set(err, 0, key, "%s: %s", key, why.message);
    TRY(r);
    return file ? config_set(c, key, file, err) : 0;
}

/* Returns the name of a model that contains @text, or that @text contains, without regard to case;
 * NULL: there is none. */
static const char *args_nearest(const struct model_list *list, const char *text) {
    for (size_t i = 0; i < list->n; i++)
        if (strcasestr(list->file[i].name, text) || strcasestr(text, list->file[i].name))
            return list->file[i].name;
    return NULL;
}

static int args_refuse_name(const struct model_list *list, const char *key, const char *text,
                            struct err *err) {
    const char *near = args_nearest(list, text);

    if (strncmp(text, "hf:", 3) == 0)
        return err_set(err, 0, key, "%s: %.120s has not been downloaded: run weftctl pull %.120s",
                       key, text, text);
    if (near)
        return err_set(err, 0, key,
                       "%s: %.150s: no file and no model has this name; is %.150s meant? (weftctl "
                       "models lists the models of this machine)",
                       key, text, near);
    return err_set(err, 0, key,
                   "%s: %.200s: no file and no model has this name (weftctl models lists the "
                   "models of this machine, weftctl pull hf:OWNER/REPO downloads one)",
                   key, text);
}

/* Replaces the model name that option @key has by the model's path, found as by weftctl models, and
 * a folder by the model in it. */
static int args_resolve(struct config *c, const char *key, const char *text, struct err *err) {
    CLEANUP(model_dirs_deinit) struct model_dirs dirs = {0};
    CLEANUP(model_list_deinit) struct model_list list = {0};
    const struct model_file *file = NULL;
    struct err why = {0};

    if (files_is_folder(text))
        return resolve_folder(c, key, text, err);
    if (!*text || args_is_path(text))
        return 0;
    TRY(model_dirs_init(&dirs, NULL));
    TRY(model_list_read(&list, &dirs));
    int r = model_find(&list, text, &file, &why);
    if (r == 0)
        return config_set(c, key, file->path, err);
    if (r == -ENOENT)
        return args_refuse_name(&list, key, text, err);
    /* several models have the name, or shards are missing: the reason names them */
    return err_set(err, 0, key, "%s: %s", key, why.message);
}

/* Prints the lines of @text, behind @from. */
static void print_lines(struct buf *text, const char *from, FILE *out) {
    char *rest = NULL;

    for (char *line = text->len ? strtok_r(text->data, "\n", &rest) : NULL; line;
         line = strtok_r(NULL, "\n", &rest))
        fprintf(out, "weftd: %s%s\n", from, printable(line).s);
}

/* Takes the variables of the environment that stand for options. What cannot be used is told and
 * does not prevent a start: other programs have the same variables. */
static int args_read_environment(struct config *c, struct args_pairs *pairs, FILE *notes,
                                 struct err *err) {
    CLEANUP(environment_deinit) struct environment e = {0};
    CLEANUP(args_deinit) struct args a = {0};

    TRY(environment_read(&e, environ));
    TRY(args_translate(&a, pairs, e.n, e.v));
    /* The address outlives this reading of the environment. */
    if (pairs->host)
        pairs->host = getenv("LLAMA_ARG_HOST");
    if (notes && e.used.len)
        fprintf(notes, "weftd: from the environment: %s\n", printable(e.used.data).s);
    if (notes && e.unread.len)
        fprintf(notes, "weftd: not read from the environment: %s\n", printable(e.unread.data).s);
    if (notes)
        print_lines(&a.refused, "environment: ", notes);
    return config_read_args(c, a.n, a.v, err);
}

int args_read(struct config *c, int argc, char **argv, FILE *notes, struct err *err) {
    CLEANUP(args_deinit) struct args a = {0};
    struct args_pairs pairs = {0};

    TRY(args_read_environment(c, &pairs, notes, err));
    TRY(args_translate(&a, &pairs, argc, argv));
    if (notes)
        print_lines(&a.refused, "", notes);
    if (a.n_refused)
        return err_set(err, 0, "", "%u option%s of the command line cannot be used (see above)",
                       a.n_refused, a.n_refused == 1 ? "" : "s");
    if (notes)
        print_lines(&a.noted, "", notes);
    if (notes && a.here.len)
        fprintf(notes, "weftd: ignored, because it always applies or weftd decides it: %s\n",
                printable(a.here.data).s);
    TRY(config_read_args(c, a.n, a.v, err));
    TRY(args_resolve(c, "model", c->model, err));
    return args_resolve(c, "draft-model", c->draft_model, err);
}
