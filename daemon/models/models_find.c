/*
 * Files are listed here and not opened: a folder may have hundreds, and an invalid file is reported
 * when a request names it. A preset that names a missing file is an error at the start; while the
 * daemon runs, it is left out, and other presets are used.
 */

#include "daemon/models/models_find.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/files.h"
#include "base/memory.h"
#include "base/model_dir.h"
#include "base/printable.h"
#include "base/text.h"
#include "base/try.h"
#include "checkpoint/checkpoint.h"
#include "daemon/models/front_model.h"
#include "engine/engine.h"

#define PRESET_END ".conf"

struct search {
    const struct config *config;
    /* files of models-dir, which presets may name */
    struct model_list files;
    /* names of presets */
    char **names;
    size_t n_names;
    /* aliases of the presets that were read */
    char **aliases;
    size_t n_aliases;
    models_find_cb cb;
    models_bad_cb bad;
    void *ctx;
};

int models_clone(struct config *c, const struct config *from) {
    static const char *const own[] = {"model",  "aliases",       "tags",          "draft-model",
                                      "mmproj", "chat-template", "system-prompt", "override-kv"};

    TRY(config_clone(c, from));
    c->pinned = false;
    for (size_t i = 0; i < ARRAY_SIZE(own); i++)
        TRY(config_set(c, own[i], "", NULL));
    return 0;
}

int models_is_preset(const struct dirent *e) {
    size_t n = strlen(e->d_name), end = sizeof(PRESET_END) - 1;

    return e->d_name[0] != '.' && n > end && strcmp(e->d_name + n - end, PRESET_END) == 0 &&
           is_printable(e->d_name);
}

/* Resolves the model of a preset, a path, a folder or the name of a file in models-dir: puts its
 * path into @c and its size into *@bytes. Returns 0 or -errno with @err. */
static int models_resolve(const struct search *s, struct config *c, const char *preset,
                          uint64_t *bytes, struct err *err) {
    CLEANUP(freep) char *file = NULL;
    const struct model_file *f = NULL;
    struct err why = {0};
    struct stat st;

    if (!*c->model)
        return err_set(err, 0, "models", "models: %.200s: the key model is missing", preset);
    if (files_is_folder(c->model)) {
        int r = checkpoint_find_model(c->model, &file, bytes, &why);

        if (r == -EINVAL)
            err_set(err, 0, "models", "models: %.120s: model: %.300s", preset, why.message);
        TRY(r);
        if (!file)
            return 0;
        return config_set(c, "model", file, err);
    }
    if (stat(c->model, &st) == 0) {
        *bytes = (uint64_t)st.st_size;
        return 0;
    }
    if (model_find(&s->files, c->model, &f, err) < 0)
        return err_set(err, 0, "models", "models: %.120s: model: %.200s: there is no such file",
                       preset, c->model);
    *bytes = f->bytes;
    return config_set(c, "model", f->path, err);
}

static bool models_has(char *const *list, size_t n, const char *name) {
    for (size_t i = 0; i < n; i++)
        if (strcmp(list[i], name) == 0)
            return true;
    return false;
}

/* Adds a copy of @name to the @n names of *@list. Returns 0 or -ENOMEM. */
static int models_add_name(char ***list, size_t *n, const char *name) {
    if (!array_resize(list, *n + 1, sizeof(**list)) || !((*list)[*n] = strdup(name)))
        return -ENOMEM;
    ++*n;
    return 0;
}

/* Returns true if another preset than @name, or the model of the options, has the name @alias. */
static bool is_name_of_other(const struct search *s, const char *name, const char *alias) {
    const struct config *c = s->config;
    char path[1300];

    if (*c->model && strcmp(c->model_name, alias) == 0)
        return true;
    snprintf(path, sizeof(path), "%s/%.250s" PRESET_END, c->models, alias);
    return strcmp(name, alias) != 0 && access(path, F_OK) == 0;
}

/* Refuses an alias that is a name or an alias of another model: which of the two a request gets
 * would depend on the order of their files. Remembers the others. */
static int models_check_aliases(struct search *s, const struct config *c, const char *name,
                                struct err *err) {
    for (char *const *alias = c->aliases; *alias; alias++) {
        bool taken =
            is_name_of_other(s, name, *alias) || models_has(s->aliases, s->n_aliases, *alias);

        for (char *const *first = s->config->aliases; *s->config->model && *first; first++)
            taken = taken || strcmp(*first, *alias) == 0;
        if (taken) {
            err_set(err, 0, "aliases", "aliases: another model has the name %.200s", *alias);
            config_add_place(c, err);
            return -EINVAL;
        }
    }
    for (char *const *alias = c->aliases; *alias; alias++)
        TRY(models_add_name(&s->aliases, &s->n_aliases, *alias));
    return 0;
}

static int models_read_preset(struct search *s, const char *file, const char *name,
                              struct config *c, uint64_t *bytes, struct err *err) {
    char path[1024];

    TRY(models_clone(c, s->config));
    snprintf(path, sizeof(path), "%s/%s", s->config->models, file);
    TRY(config_set(c, "model-name", name, err));
    TRY(config_read_preset(c, path, err));
    TRY(models_resolve(s, c, file, bytes, err));
    if (strcmp(c->model_name, name) != 0)
        return err_set(
            err, 0, "models",
            "models: %.200s: model-name: cannot be set in a preset, which has the name of its file",
            file);
    return models_check_aliases(s, c, name, err);
}

static int models_add_preset(struct search *s, const char *file, struct err *err) {
    CLEANUP(config_deinit) struct config c = {0};
    char name[256];
    uint64_t bytes = 0;
    int len = (int)(strlen(file) - strlen(PRESET_END));

    assert(len > 0 && (size_t)len < sizeof(name)); /* checked by models_is_preset() */
    snprintf(name, sizeof(name), "%.*s", len, file);
    int r = models_read_preset(s, file, name, &c, &bytes, err);
    bool is_bad = r < 0 && s->bad && *err->message;
    if (r < 0 && !is_bad)
        return r;
    /* Takes the name of a bad preset too, so that no file is served under it without its
     * options. */
    TRY(models_add_name(&s->names, &s->n_names, name));
    if (!is_bad)
        return s->cb(s->ctx, &c, name, bytes);
    r = s->bad(s->ctx, name, err);
    memset(err, 0, sizeof(*err));
    return r;
}

static int add_presets(struct search *s, struct err *err) {
    struct dirent **list = NULL;
    int n = scandir(s->config->models, &list, models_is_preset, alphasort), r = 0;

    if (n < 0)
        return err_set(err, 0, "models", "models: %.200s: cannot be read: %s", s->config->models,
                       strerror(errno));
    for (int i = 0; i < n && r == 0; i++)
        r = models_add_preset(s, list[i]->d_name, err);
    for (int i = 0; i < n; i++)
        free(list[i]);
    free(list);
    return r;
}

/* Adds the name by which Ollama's clients know a model that they pulled from the hub:
 * "hf.co/OWNER/REPO[:QUANT]". */
static int set_hub_names(struct config *c, const struct model_file *f, struct err *err) {
    const char *quant = model_quant(f->name);
    char names[600];

    if (!*f->repo || strlen(f->repo) + strlen(f->name) > 250 || strpbrk(f->repo, ",* "))
        return 0;
    snprintf(names, sizeof(names), "hf.co/%s%s%s%s%s", f->repo, quant ? ",hf.co/" : "",
             quant ? f->repo : "", quant ? ":" : "", text_or(quant, ""));
    return config_set(c, "aliases", names, err);
}

static int models_add_files(struct search *s, struct err *err) {
    for (size_t i = 0; i < s->files.n; i++) {
        CLEANUP(config_deinit) struct config c = {0};
        const struct model_file *f = &s->files.file[i];

        assert(f->name && f->path);
        if (f->n_missing || models_has(s->names, s->n_names, f->name))
            continue;
        TRY(models_clone(&c, s->config));
        TRY(config_set(&c, "model", f->path, err));
        TRY(config_set(&c, "model-name", f->name, err));
        TRY(set_hub_names(&c, f, err));
        TRY(s->cb(s->ctx, &c, f->name, f->bytes));
    }
    return 0;
}

/* Lists the files of models-dir, or with "auto" those of all programs. Returns 0 or -ENOMEM. */
static int list_files(struct search *s) {
    const char *option = s->config->models_dir;
    bool all = strcmp(option, "auto") == 0;
    CLEANUP(model_dirs_deinit) struct model_dirs dirs = {0};

    if (!*option)
        return 0;
    TRY(model_dirs_init(&dirs, all ? NULL : option));
    for (int i = 0; i < MODEL_N_STORES && !all; i++)
        if (i != MODEL_WEFT) {
            free(dirs.root[i]);
            dirs.root[i] = NULL;
        }
    return model_list_read(&s->files, &dirs);
}

static void search_deinit(struct search *s) {
    for (size_t i = 0; i < s->n_names; i++)
        free(s->names[i]);
    free(s->names);
    for (size_t i = 0; i < s->n_aliases; i++)
        free(s->aliases[i]);
    free(s->aliases);
    model_list_deinit(&s->files);
}

int models_find_all(const struct config *c, models_find_cb cb, models_bad_cb bad, void *ctx,
                    struct err *err) {
    CLEANUP(search_deinit) struct search s = {.config = c, .cb = cb, .bad = bad, .ctx = ctx};

    TRY(list_files(&s));
    if (*c->models)
        TRY(add_presets(&s, err));
    return models_add_files(&s, err);
}

struct checked {
    /* models */
    uint32_t n;
    struct err *err;
};

/* Counts a model and checks the option of a preset that depends on this machine. Implements
 * models_find_cb. */
static int check_one(void *ctx, struct config *c, const char *name, uint64_t file_bytes) {
    struct checked *all = ctx;
    struct err why = {0};

    (void)file_bytes;
    all->n++;
    if (engine_check_isa(&c->engine, &why) != 0)
        return err_set(all->err, 0, "models", "models: %.200s: %.250s", name, why.message);
    return 0;
}

int models_refuse_none(const struct config *c, struct err *err) {
    bool is_folder = *c->models_dir && strcmp(c->models_dir, "auto") != 0;

    if (is_folder && !files_is_folder(c->models_dir))
        return err_set(err, 0, "models-dir", "models-dir: %.300s: cannot be used: %s",
                       c->models_dir, strerror(access(c->models_dir, F_OK) < 0 ? errno : ENOTDIR));
    return err_set(err, 0, "models", "models, models-dir: the folders contain no model");
}

/* Returns true if a CUDA device may compute the model, whose memory is not known here. */
static bool may_use_device(const struct config *c) {
    if (strcmp(c->engine.backend, "auto") != 0)
        return strcmp(c->engine.backend, "cuda") == 0;
    return access("/dev/nvidiactl", F_OK) == 0;
}

/* Checks that memory and context of the model suffice. Appends the sum to @out. */
static int check_memory(const struct front_model *f, const struct config *c, struct buf *out,
                        struct err *err) {
    const struct engine_fit *e = &f->fit;

    if (c->engine.max_context > f->header.n_ctx_train && f->header.n_ctx_train)
        TRY(buf_printf(out, "max-context: %u is lowered to the model's %u tokens\n",
                       c->engine.max_context, f->header.n_ctx_train));
    if (may_use_device(c))
        return 0;
    if (*f->fit_why.message && e->weight_bytes) {
        *err = f->fit_why;
        return -ENOMEM;
    }
    if (e->weight_bytes + e->kv_bytes > memory_machine())
        return err_set(err, 0, "kv-memory",
                       "kv-memory: does not fit: weights %llu MiB + keys and values %llu MiB, this "
                       "machine has %llu MiB",
                       (unsigned long long)(e->weight_bytes >> 20),
                       (unsigned long long)(e->kv_bytes >> 20),
                       (unsigned long long)(memory_machine() >> 20));
    return buf_printf(out,
                      "memory: weights %llu MiB + buffers %llu MiB + keys and values %llu MiB, a "
                      "context of %u tokens\n",
                      (unsigned long long)(e->weight_bytes >> 20),
                      (unsigned long long)(e->buffer_bytes >> 20),
                      (unsigned long long)(e->kv_bytes >> 20), e->context);
}

static int open_and_check(struct front_model *f, const struct config *c, struct buf *memory,
                          struct err *err) {
    const struct msg_open room = {.memory_bytes = memory_available()};

    TRY(front_model_open(f, c, &room, err));
    return check_memory(f, c, memory, err);
}

/* Checks the model that @c names itself. */
static int check_named(const struct config *c, struct buf *memory, struct err *err) {
    CLEANUP(freep) struct front_model *f = calloc(1, sizeof(*f));

    if (!f)
        return -ENOMEM;
    int r = open_and_check(f, c, memory, err);
    front_model_deinit(f);
    return r;
}

int models_check(const struct config *c, struct buf *memory, struct err *err) {
    struct checked all = {.err = err};

    TRY(engine_check_isa(&c->engine, err));
    if (*c->model)
        TRY(check_named(c, memory, err));
    TRY(models_find_all(c, check_one, NULL, &all, err));
    if (all.n == 0 && !*c->model)
        return models_refuse_none(c, err);
    return 0;
}
