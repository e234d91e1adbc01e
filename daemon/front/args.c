#include "daemon/front/args.h"

#include <assert.h>
#include <errno.h>
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
#include "daemon/front/llama_options.h"

/*
 * Each argument is weftd's own option, a row of llama_options.c, or unknown. A name that both
 * programs have is weftd's, unless it has a row. Options that depend on each other (-c and -np,
 * --host and --port) are collected and added at the end.
 */

#define NOTES_MAX (64u << 10)

struct reading {
    struct args *a;
    int argc;
    char **argv;
    int i;
    int r; /* result: 0 or -ENOMEM */
    /* Values of llama-server's options; NULL: not given. */
    const char *host;
    uint64_t port, context, parallel;
    bool has_port, has_context, unified, tls;
    off_t keys_end; /* bytes of the keys so far */
};

/* Appends the argument that printf() makes of @fmt. */
static void PRINTF(2, 3) add(struct reading *d, const char *fmt, ...) {
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
static void PRINTF(3, 4) refuse(struct reading *d, const char *name, const char *fmt, ...) {
    char text[400];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    d->a->n_refused++;
    buf_printf(&d->a->refused, "%.*s: %s\n", (int)strcspn(name, "="), name, text);
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
    refuse(d, name, "needs a value");
    return NULL;
}

/* Skips the value of a switch, which may have none. */
static void skip_switch(struct reading *d) {
    static const char *const words[] = {"on", "off", "auto", "0", "1", "true", "false"};
    const char *next = d->i + 1 < d->argc ? d->argv[d->i + 1] : "";

    for (size_t i = 0; i < ARRAY_SIZE(words); i++)
        if (strcmp(next, words[i]) == 0) {
            d->i++;
            return;
        }
}

/* Reads a whole number of at most 32 bits; returns false and adds a note for any other text. */
static bool number(struct reading *d, const char *name, const char *text, uint64_t *out) {
    char *end;
    unsigned long long n = strtoull(text, &end, 10);

    bool is_number = *text >= '0' && *text <= '9' && !*end;

    if (!is_number || n > UINT32_MAX) {
        refuse(d, name, "\"%.60s\" is %s", text, is_number ? "too large" : "not a whole number");
        return false;
    }
    *out = n;
    return true;
}

/* Adds "--listen ADDRESS,..." from --host and --port; hosts are separated by commas. */
static void add_listen(struct reading *d) {
    const char *host = d->host ? d->host : "127.0.0.1";
    unsigned long long port = d->has_port ? d->port : 8080;
    CLEANUP(buf_deinit)
    struct buf list = {.max = UINT32_MAX}; /* as long as the command line allows */

    if (!d->host && !d->has_port && !d->tls)
        return;
    for (size_t n; *host; host += n + (host[n] == ',')) {
        const char *comma = list.len ? "," : "", *tls = d->tls ? "tls:" : "";

        n = strcspn(host, ",");
        bool is_path = n > 5 && memcmp(host + n - 5, ".sock", 5) == 0;
        int r = is_path
                    ? buf_printf(&list, "%sunix:%.*s", comma, (int)n, host)
                    : buf_printf(&list, memchr(host, ':', n) ? "%s%s[%.*s]:%llu" : "%s%s%.*s:%llu",
                                 comma, tls, (int)n, host, port);
        if (r < 0)
            d->r = r;
    }
    add(d, "--listen=%s", list.len ? list.data : "");
}

/* Adds the length of the longest request and the number of requests. llama-server divides -c among
 * the slots of -np. */
static void add_context(struct reading *d) {
    bool divided = d->parallel > 1 && !d->unified;

    if (d->parallel) {
        add(d, "--max-seqs=%llu", (unsigned long long)d->parallel);
        add(d, "--max-running=%llu", (unsigned long long)d->parallel);
    }
    if (d->has_context)
        add(d, "--max-context=%llu",
            (unsigned long long)(divided ? (d->context + d->parallel - 1) / d->parallel
                                         : d->context));
}

/* Adds the keys of an --api-key, separated by commas, to a file without a name, since weftd reads
 * them again when it reloads. */
static void add_keys(struct reading *d, const char *keys) {
    static int fd = -1; /* open as long as the process runs: a reload gets the same path */

    if (fd < 0 && (fd = memfd_create("api-keys", MFD_CLOEXEC)) < 0) {
        d->r = -errno;
        return;
    }
    CLEANUP(freep) char *lines = NULL;
    int n = asprintf(&lines, "%s\n", keys);
    for (char *p = n < 0 ? NULL : lines; p && (p = strchr(p, ',')); p++)
        *p = '\n';
    if (n < 0 || fchmod(fd, 0600) < 0 || ftruncate(fd, d->keys_end) < 0 ||
        pwrite(fd, lines, (size_t)n, d->keys_end) != n)
        d->r = -ENOMEM;
    d->keys_end += n;
    add(d, "--api-keys=/proc/self/fd/%d", fd);
}

static void add_kv_type(struct reading *d, const char *name, const char *option, const char *type) {
    static const char *const types[] = {"f16", "q8_0", "q4_0"};
    bool known = false;

    for (size_t i = 0; i < ARRAY_SIZE(types); i++)
        known |= strcmp(types[i], type) == 0;
    if (known)
        add(d, "--%s=%s", option, type);
    else
        refuse(d, name, "format %.20s does not exist here: use --%s f16, q8_0 or q4_0", type,
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
static void add_names(struct reading *d, const char *names) {
    const char *first = names;

    for (const char *at = names; *at; at += strcspn(at, ","), at += *at == ',')
        if (*at != ',' && name_is_before(at, first))
            first = at;
    size_t n = strcspn(first, ",");
    add(d, "--model-name=%.*s", (int)n, first);
    if (strchr(names, ','))
        add(d, "--aliases=%.*s%s", (int)(first - names), names, first + n);
}

/* Translates an option whose values mean something else in weftd. */
static void translate_value(struct reading *d, const struct llama_option *o, const char *name,
                            const char *text) {
    uint64_t n;

    switch (o->kind) {
    case LLAMA_VALUE:
        add(d, "--%s=%s", o->ours, text);
        break;
    case LLAMA_COUNT:
        if (*text != '-' && strcmp(text, "auto") != 0)
            add(d, "--%s=%s", o->ours, text);
        break;
    case LLAMA_SAMPLING:
        if (strcmp(o->ours, "seed") != 0 || *text != '-')
            add(d, "--sampling=%s=%s", o->ours, text);
        break;
    case LLAMA_CONTEXT:
        d->has_context = number(d, name, text, &d->context);
        break;
    case LLAMA_PARALLEL:
        if (*text != '-')
            number(d, name, text, &d->parallel);
        break;
    case LLAMA_HOST:
        d->host = text;
        break;
    case LLAMA_PORT:
        d->has_port = number(d, name, text, &d->port);
        break;
    case LLAMA_KEYS:
        add_keys(d, text);
        break;
    case LLAMA_LAYERS:
        if (strcmp(text, "0") == 0)
            add(d, "--backend=cpu");
        else
            pass_over(d, name);
        break;
    case LLAMA_KV_TYPE:
        add_kv_type(d, name, o->ours, text);
        break;
    case LLAMA_BUDGET:
        if (strcmp(text, "0") == 0)
            add(d, "--reasoning=off");
        else if (*text != '-')
            refuse(d, name, "send it in requests as thinking_budget");
        break;
    case LLAMA_CACHE_MIB:
        if (*text != '-' && strcmp(text, "0") != 0 && number(d, name, text, &n))
            add(d, "--host-kv-memory=%lluM", (unsigned long long)n);
        break;
    case LLAMA_REPO:
        add(d, "--model=%s%s", strncmp(text, "hf:", 3) == 0 ? "" : "hf:", text);
        break;
    case LLAMA_ALIAS:
        add_names(d, text);
        break;
    case LLAMA_CERTIFICATE:
        d->tls = true;
        add(d, "--tls-certificate=%s", text);
        break;
    case LLAMA_HERE_VALUE:
        pass_over(d, name);
        break;
    default:
        assert(o->kind == LLAMA_REFUSED_VALUE);
        refuse(d, name, "%s", o->ours);
        break;
    }
}

static void translate(struct reading *d, const struct llama_option *o) {
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
        refuse(d, name, "%s", o->ours);
        break;
    case LLAMA_FLAG:
        add(d, "--%s", o->ours);
        break;
    case LLAMA_UNIFIED:
        d->unified = true;
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
static void refuse_unknown(struct reading *d) {
    const char *name = d->argv[d->i];
    char bare[64];

    snprintf(bare, sizeof(bare), "%.*s", (int)strcspn(name, "="), name);
    const char *meant = config_meant(bare + strspn(bare, "-"));
    if (meant)
        refuse(d, name, "unknown option; is --%s meant?", meant);
    else
        refuse(d, name, "unknown option (weftd --help lists all)");
    if (!strchr(name, '=') && d->i + 1 < d->argc && d->argv[d->i + 1][0] != '-')
        d->i++;
}

int args_translate(struct args *a, int argc, char **argv) {
    struct reading d = {.a = a, .argc = argc, .argv = argv, .i = 1};

    *a = (struct args){.here = {.max = NOTES_MAX}, .refused = {.max = NOTES_MAX}};
    if (argc > 0)
        add(&d, "%s", argv[0]);
    for (; d.i < argc && d.r == 0; d.i++) {
        const char *arg = argv[d.i];
        const struct llama_option *o = llama_option_find(arg, strcspn(arg, "="));

        if (o) {
            translate(&d, o);
        } else if (is_own(arg)) {
            add(&d, "%s", arg);
            if (!strchr(arg, '=') && d.i + 1 < argc)
                add(&d, "%s", argv[++d.i]);
        } else if (*arg == '-') {
            refuse_unknown(&d);
        } else {
            refuse(&d, arg, "not an option; a model is given with --model FILE");
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
    buf_deinit(&a->refused);
    *a = (struct args){0};
}

/* ---- models by name ---- */

/* Returns true if @text can only be a path. */
static bool is_path(const char *text) {
    return *text == '/' || *text == '.' || access(text, F_OK) == 0;
}

/* Replaces the folder @path that option @key has by the path of the model in it. */
static int resolve_folder(struct config *c, const char *key, const char *path, struct err *err) {
    CLEANUP(freep) char *file = NULL;
    struct err why = {0};
    uint64_t bytes;
    int r = model_in_folder(path, &file, &bytes, &why);

    if (r == -EINVAL)
        return err_set(err, 0, key, "%s: %s", key, why.message);
    return r < 0 ? r : config_set(c, key, file, err);
}

/* Replaces the model name that option @key has by the model's path, found as by weftctl models, and
 * a folder by the model in it. */
static int resolve(struct config *c, const char *key, const char *text, struct err *err) {
    struct model_dirs dirs = {0};
    struct model_list list = {0};
    const struct model_file *file = NULL;

    if (files_is_folder(text))
        return resolve_folder(c, key, text, err);
    if (!*text || is_path(text))
        return 0;
    int r = model_dirs_init(&dirs, NULL);
    if (r == 0)
        r = model_list_read(&list, &dirs);
    if (r == 0 && (r = model_find(&list, text, &file, NULL)) == 0)
        r = config_set(c, key, file->path, err);
    /* several models have the name, or shards are missing: the reason names them */
    else if (r == -EINVAL)
        model_find(&list, text, &file, err);
    else if (r == -ENOENT && strncmp(text, "hf:", 3) == 0)
        r = err_set(err, 0, key, "%s: %.120s has not been downloaded: run weftctl pull %.120s", key,
                    text, text);
    else if (r == -ENOENT)
        r = err_set(
            err, 0, key,
            "%s: %.200s: no file and no model has this name (weftctl models lists the models "
            "of this machine, weftctl pull hf:OWNER/REPO downloads one)",
            key, text);
    model_list_deinit(&list);
    model_dirs_deinit(&dirs);
    return r;
}

static void print_refused(struct args *a, FILE *out) {
    char *rest = NULL;

    for (char *line = a->n_refused ? strtok_r(a->refused.data, "\n", &rest) : NULL; line;
         line = strtok_r(NULL, "\n", &rest))
        fprintf(out, "weftd: %s\n", printable(line).s);
}

int args_read(struct config *c, int argc, char **argv, FILE *notes, struct err *err) {
    CLEANUP(args_deinit) struct args a = {0};

    TRY(args_translate(&a, argc, argv));
    if (notes)
        print_refused(&a, notes);
    if (a.n_refused)
        return err_set(err, 0, "", "%u option%s of the command line cannot be used (see above)",
                       a.n_refused, a.n_refused == 1 ? "" : "s");
    if (notes && a.here.len)
        fprintf(notes, "weftd: ignored, because it always applies or weftd decides it: %s\n",
                printable(a.here.data).s);
    TRY(config_read_args(c, a.n, a.v, err));
    TRY(resolve(c, "model", c->model, err));
    return resolve(c, "draft-model", c->draft_model, err);
}
