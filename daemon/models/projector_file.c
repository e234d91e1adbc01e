#include "daemon/models/projector_file.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/api.h"
#include "base/log.h"
#include "base/model_dir.h"
#include "base/printable.h"
#include "base/sha256.h"
#include "base/text.h"
#include "base/try.h"
#include "checkpoint/checkpoint.h"

#define NONE "none"

/* ---- a file beside the model ---- */

/* Reads the names in @path that contain "mmproj". A folder that cannot be read has none. */
static void read_folder(struct projector_folder *f, const char *path) {
    struct dirent *e;

    projector_folder_deinit(f);
    DIR *d = opendir(path);
    f->path = strdup(path);
    while (d && f->path && (e = readdir(d))) {
        char *name = strcasestr(e->d_name, "mmproj") ? strdup(e->d_name) : NULL;

        if (name && array_resize(&f->name, f->n + 1, sizeof(*f->name)))
            f->name[f->n++] = name;
        else
            free(name);
    }
    if (d)
        closedir(d);
}

void projector_folder_deinit(struct projector_folder *f) {
    for (size_t i = 0; i < f->n; i++)
        free(f->name[i]);
    free(f->name);
    free(f->path);
    *f = (struct projector_folder){0};
}

/* Finds the projector beside the model at @path: a file whose name contains "mmproj" and the
 * model's name without its quantisation, otherwise a file whose name has only a quantisation; of
 * several the most exact one that is not larger than F16. Writes its path to @out of @size bytes,
 * or "" if there is none. Reads the folder unless @f has its names. */
static void find_beside(struct projector_folder *f, const char *path, char *out, size_t size) {
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path, *found = NULL;
    int dir_len = slash ? (int)(slash - path) : 1, best = 0;
    char dir[1024];

    *out = 0;
    snprintf(dir, sizeof(dir), "%.*s", dir_len, slash ? path : ".");
    const char *folder = text_filled_or(dir, "/");
    if (!f->path || strcmp(f->path, folder) != 0)
        read_folder(f, folder);
    for (size_t i = 0; i < f->n; i++) {
        int fit = model_projector_fit(f->name[i], base);

        if (fit > best || (fit == best && fit > 0 && strcmp(f->name[i], found) < 0)) {
            best = fit;
            found = f->name[i];
        }
    }
    if (found && (size_t)snprintf(out, size, "%s/%s", dir, found) >= size)
        *out = 0;
}

/* ---- opening ---- */

static void projector_make_id(const struct gguf *file, uint8_t out[32]) {
    uint8_t print[16];
    uint64_t size = gguf_bytes(file);
    struct sha256 sum;

    gguf_fingerprint(file, print);
    sha256_init(&sum);
    sha256_add(&sum, print, sizeof(print));
    sha256_add(&sum, &size, sizeof(size));
    sha256_end(&sum, out);
}

/* Opens the file at @path and checks that the model can take pictures with it. */
static int projector_open_file(struct projector_file *p, const char *path, const struct gguf *model,
                               const struct tokenizer *t, struct err *err) {
    uint32_t n_embd = 0;
    struct gguf_str arch;
    char key[128];

    TRY(checkpoint_open_projector(&p->file, path, err));
    TRY(projector_read(&p->projector, p->file, err));
    if (gguf_string(model, "general.architecture", &arch) == 0) {
        snprintf(key, sizeof(key), "%.*s.embedding_length", (int)MIN(arch.len, 64), arch.data);
        gguf_u32(model, key, &n_embd);
    }
    if (n_embd != p->projector.n_out)
        return err_set(err, 0, "mmproj",
                       "its rows have %u values, and those of the model have %u: it is the "
                       "projector of another model",
                       p->projector.n_out, n_embd);
    if (!api_marks_pictures(&p->projector, t))
        return err_set(err, 0, "mmproj",
                       "the model's vocabulary lacks the tokens around pictures of projector '%s'",
                       p->projector.name);
    projector_make_id(p->file, p->id);
    return 0;
}

/* Checks that the least size of a picture is not above the largest. */
static int check_limits(const struct projector *p, const struct config *c, struct err *err) {
    uint32_t most = c->engine.picture_rows ? c->engine.picture_rows : p->most;

    if (p->side || c->picture_min_tokens <= most)
        return 0;
    return err_set(err, 0, "picture-min-tokens",
                   "picture-min-tokens: %u: a picture has at most %u tokens (picture-max-tokens)",
                   c->picture_min_tokens, most);
}

/* Returns true if the worker will probably compute on a device that takes no pictures of the
 * projector's kind, because rows of a picture attend to each other. A projector that no option
 * names must not prevent such a device from serving the model. Gemma 4 E2B and E4B are recognised
 * by their widths. */
static bool is_not_for_device(const struct projector *p, const char *backend) {
    bool cuda = strcmp(backend, "cuda") == 0, automatic = strcmp(backend, "auto") == 0;
    bool gemma4 = p->kind == PROJECTOR_GEMMA4V || p->kind == PROJECTOR_GEMMA4UV;

    if (!cuda && (!automatic || access("/dev/nvidiactl", F_OK) < 0))
        return false;
    return p->kind == PROJECTOR_GEMMA3 || (gemma4 && p->n_out != 1536 && p->n_out != 2560);
}

static void say_ignored(const char *path, const char *why) {
    log_event(WLOG_WARN, "projector_ignored", "file=%s reason=%s", quoted(path).s, quoted(why).s);
}

void projector_file_deinit(struct projector_file *p) {
    gguf_free(p->file);
    *p = (struct projector_file){0};
}

/* Writes the path of the projector that the options name, that lies beside the model, or that is in
 * its folder; "": none. */
static void projector_find(struct projector_folder *f, const struct config *c, char *out,
                           size_t size) {
    snprintf(out, size, "%s", strcmp(c->mmproj, NONE) == 0 ? "" : c->mmproj);
    if (*c->mmproj)
        return;
    find_beside(f, c->model, out, size);
    if (!*out && checkpoint_has_projector(c->model))
        snprintf(out, size, "%s", c->model);
}

bool projector_file_is_there(const struct config *c, struct projector_folder *f) {
    char path[1300];

    projector_find(f, c, path, sizeof(path));
    return *path && access(path, R_OK) == 0;
}

/* Tells whether a message names the file @path itself, as those about opening a file do. */
static bool begins_with_projector(const char *message, const char *path) {
    return strncmp(message, path, strlen(path)) == 0;
}

int projector_file_open(struct projector_file *out, const struct config *c, const struct gguf *file,
                        const struct tokenizer *t, struct err *err) {
    CLEANUP(projector_folder_deinit) struct projector_folder folder = {0};
    char path[1300];
    struct err e = {0};

    projector_find(&folder, c, path, sizeof(path));
    if (!*path)
        return 0;
    int r = projector_open_file(out, path, file, t, &e);
    if (r == 0 && !*c->mmproj && is_not_for_device(&out->projector, c->engine.backend)) {
        projector_file_deinit(out);
        say_ignored(path, "only the CPU computes pictures of this model: backend = cpu");
        return 0;
    }
    if (r == 0)
        return check_limits(&out->projector, c, err);
    projector_file_deinit(out);
    const char *why = *e.message ? e.message : strerror(-r);
    if (*c->mmproj && begins_with_projector(why, path))
        return err_set(err, 0, "mmproj", "mmproj: %.350s", why);
    if (*c->mmproj)
        return err_set(err, 0, "mmproj", "mmproj: %.150s: %.200s", path, why);
    say_ignored(path, why);
    return 0;
}
