#include <assert.h>
#include <errno.h>
#include <glob.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <yyjson.h>

#include "base/gguf.h"
#include "base/memory.h"
#include "base/model_dir.h"
#include "base/text.h"
#include "checkpoint/checkpoint.h"
#include "cmd/cli.h"
#include "cmd/ctl.h"
#include "cmd/ctl_fetch.h"
#include "cmd/ctl_local.h"
#include "engine/engine.h"

static const char usage[] =
    "usage: weftctl pull [OPTIONS] hf:OWNER/REPO[:QUANT|:FILE|:safetensors][@REVISION]\n"
    "Downloads a model from the Hugging Face hub, with its projector (mmproj) if the model reads\n"
    "pictures. The default quantisation is Q4_K_M, or the nearest that the repository has and "
    "that\n"
    "fits into memory. A repository without such a file is taken as a folder of safetensors.\n"
    "  --list            list the files of the repository, and mark the one to download\n"
    "  --memory BYTES    choose for this much free memory (as 16G), not for that of this machine\n"
    "  --models DIR      folder for models; else $WEFT_MODELS, or ~/.local/share/weft/models\n"
    "  --stall SECONDS   give up a connection that sends nothing for this long (30)\n"
    "  --tries N         give up after N attempts in a row without data (6)\n"
    "  --json            print a line of JSON for every step\n"
    "An interrupted download is continued by the next pull.\n";

#define LISTING_MAX (32u << 20)

static volatile sig_atomic_t stop;

static void on_signal(int number) {
    stop = number;
}

/* A pull. Its members are filled in this order: the specification, the listing of the
 * repository, the files chosen from it. */
struct pull {
    struct hub_spec spec;
    struct hub_listing listing;
    struct hub_choice choice;
    struct model_dirs dirs;
    struct hub *hub;
    struct progress progress;
    /* bytes that the model may take; 0: not known */
    uint64_t memory;
    uint32_t stall_s, n_tries;
    bool json;
};

/* ---- the repository ---- */

static bool begin_listing(void *ctx, const struct hub_reply *reply) {
    buf_clear(ctx);
    return true;
}

static bool add_listing(void *ctx, const void *data, size_t len) {
    return buf_add(ctx, data, len) == 0;
}

/* Reads the listing of the repository. Returns an exit code. */
static int read_listing(struct pull *p, struct err *err) {
    CLEANUP(buf_deinit) struct buf json = {.max = LISTING_MAX};
    const struct hub_sink sink = {begin_listing, add_listing, NULL, &json};
    struct hub_reply reply;
    char path[1024];

    if (!hub_listing_path(&p->spec, path, sizeof(path))) {
        if (err_set(err, 0, NULL, "the name is too long") < 0)
            return CTL_REFUSED;
        return CTL_OK;
    }
    for (uint32_t n = 1;; n++) {
        int r = hub_get(p->hub, path, 0, &sink, &reply, err);

        if (r == HUB_STOPPED)
            return FETCH_INTERRUPTED;
        if (r == HUB_LOCAL)
            err_set(err, 0, NULL, "the hub's listing of %s is too long", p->spec.repo);
        if (r == HUB_LOCAL)
            return CTL_REFUSED;
        if (r == HUB_REFUSED) {
            if (err->status != 401 && err->status != 403)
                return CTL_REFUSED;
            return CTL_DENIED;
        }
        if (r == HUB_OK)
            return hub_listing_read(&p->listing, text_or(json.data, ""), json.len, err) < 0
                       ? CTL_REFUSED
                       : CTL_OK;
        int64_t wait_ms = hub_wait_ms(&reply, n);
        if (n >= p->n_tries || wait_ms < 0)
            return CTL_UNREACHABLE;
        progress_print(&p->progress, "retrying", "%.300s; next try in %.1f s", err->message,
                       (double)wait_ms / 1000);
        if (!fetch_sleep(&stop, wait_ms))
            return FETCH_INTERRUPTED;
    }
}

static int print_list(const struct pull *p) {
    struct hub_choice c;

    printf("%-12s %10s %6s  %s\n", "quant", "size", "files", "name");
    for (uint32_t i = 0; i < p->listing.n; i++) {
        if (!hub_model_at(&p->listing, i, &c))
            continue;
        const char *quant = model_quant(c.stem);

        printf("%-12s %10s %6u  %s%s\n", text_or(quant, "-"), size_text(c.bytes).s, c.n, c.stem,
               p->choice.n && p->choice.file[0] == i ? "  <- would be downloaded" : "");
    }
    if (hub_choose_folder(&p->listing, &p->spec, &c, NULL) == 0)
        printf("%-12s %10s %6u  %s%s\n", "safetensors", size_text(c.bytes).s, c.n, c.stem,
               p->choice.folder ? "  <- would be downloaded" : "");
    return cli_flush(CLI_OK);
}

/* ---- the target ---- */

/* Writes the path of file @k of the choice, in weft's folder or in the hub's cache. In weft's
 * folder the projector lies beside the model, where weftd looks for it. */
static bool target_path(const struct pull *p, uint32_t k, bool in_cache, char *out, size_t size) {
    assert(k < p->choice.n);
    const char *file = p->listing.file[p->choice.file[k]].path, *slash = strchr(p->spec.repo, '/');
    const char *first = p->listing.file[p->choice.file[0]].path, *base = strrchr(first, '/');
    const char *own = k >= p->choice.n_shards ? strrchr(file, '/') : NULL;
    bool moves = k >= p->choice.n_shards && !in_cache;
    int n, folder = moves && base ? (int)(base + 1 - first) : 0;

    if (p->choice.folder)
        folder = 0;
    if (in_cache)
        n = snprintf(out, size, "%s/models--%.*s--%s/snapshots/%s/%s", p->dirs.root[MODEL_HUB],
                     (int)(slash - p->spec.repo), p->spec.repo, slash + 1, p->listing.commit, file);
    else
        n = snprintf(out, size, "%s/%s/%.*s%s", p->dirs.root[MODEL_WEFT], p->spec.repo, folder,
                     first, moves && own ? own + 1 : file);
    return n > 0 && (size_t)n < size;
}

/* Writes the path of the model: that of its first file, or the folder. */
static void pull_model_path(const struct pull *p, bool in_cache, char *out, size_t size) {
    target_path(p, 0, in_cache, out, size);
    if (p->choice.folder)
        *strrchr(out, '/') = 0;
}

/* Returns whether the hub's cache has files [from, to) of the choice. */
static bool is_in_cache(const struct pull *p, uint32_t from, uint32_t to) {
    char path[4096];
    struct stat st;

    for (uint32_t k = from; k < to; k++)
        if (!p->dirs.root[MODEL_HUB] || !target_path(p, k, true, path, sizeof(path)) ||
            stat(path, &st) < 0 || (uint64_t)st.st_size != p->listing.file[p->choice.file[k]].size)
            return false;
    return true;
}

/* Refuses a model for which the disk has no room, before anything is loaded. Returns an exit
 * code. */
static int pull_check_room(const struct pull *p, uint64_t missing, const char *in,
                           struct err *err) {
    struct statvfs fs;

    if (missing == 0 || statvfs(in, &fs) < 0)
        return CTL_OK;
    uint64_t room = (uint64_t)fs.f_bavail * fs.f_frsize;
    if (missing <= room)
        return CTL_OK;
    err_set(err, 507, NULL, "%s needs %s more, but the disk of %s has only %s free", p->choice.stem,
            size_text(missing).s, p->dirs.root[MODEL_WEFT], size_text(room).s);
    return CTL_REFUSED;
}

struct paths {
    char request[2048], target[4096];
};

/* Fills in the fetch of file @k. Returns false if a name is too long. */
static bool plan_file(struct pull *p, uint32_t k, struct paths *paths, struct fetch *out) {
    const struct hub_file *file = &p->listing.file[p->choice.file[k]];

    *out = (struct fetch){
        .hub = p->hub,
        .path = paths->request,
        .target = paths->target,
        .sha256 = file->sha256,
        .anew = k < p->choice.n_small,
        .size = file->size,
        .n_tries = p->n_tries,
        .stop = &stop,
        .progress = &p->progress,
    };
    return target_path(p, k, false, paths->target, sizeof(paths->target)) &&
           hub_file_path(&p->spec, p->listing.commit, file->path, paths->request,
                         sizeof(paths->request));
}

/* Refuses to mix both forms of a model in the folder @dir, of which neither could be served by the
 * name of the folder then. Returns an exit code. */
static int pull_check_form(const struct pull *p, const char *dir, struct err *err) {
    static const char *const patterns[] = {"/*.gguf", "/*.safetensors"};
    char path[4200];
    glob_t found = {0};

    snprintf(path, sizeof(path), "%s%s", dir, patterns[p->choice.folder ? 0 : 1]);
    bool mixed = glob(path, GLOB_NOSORT, NULL, &found) == 0 && found.gl_pathc > 0;
    globfree(&found);
    if (!mixed)
        return CTL_OK;
    err_set(err, 0, NULL,
            "%.300s has this model in the other form: remove that first (weftctl rm), or choose "
            "another folder with --models DIR",
            dir);
    return CTL_REFUSED;
}

/* Refuses a folder that weftd cannot serve before its weights are loaded, once its first files are
 * there. Returns an exit code. */
static int pull_check_small(const struct pull *p, struct err *err) {
    char dir[4096];
    struct err why = {0};

    pull_model_path(p, false, dir, sizeof(dir));
    int r = checkpoint_check(dir, &why);
    if (r == 0)
        return CTL_OK;
    err_set(err, 0, NULL, "weftd cannot serve %s: %s; its weights were not downloaded",
            p->choice.stem, why.message[0] ? why.message : strerror(-r));
    return CTL_REFUSED;
}

/* Tells which files are taken, and why. */
static void pull_print_choice(struct pull *p) {
    const char *quant = model_quant(p->choice.stem), *why = "the only model of the repository";
    uint32_t n_models = 0;
    struct hub_choice c;

    for (uint32_t i = 0; i < p->listing.n; i++)
        n_models += hub_model_at(&p->listing, i, &c);
    if (*p->spec.what)
        why = "as asked for";
    else if (p->choice.folder && p->choice.instead)
        why = "no usual quantisation fits into memory; --list shows them";
    else if (p->choice.folder)
        why = "the repository has no GGUF files";
    else if (p->choice.instead)
        why = "the first in weft's order of quantisations that fits into memory; --list shows the "
              "others";
    else if (n_models > 1)
        why = "the first in weft's order of quantisations; --list shows the others";
    if (p->choice.folder)
        progress_print(&p->progress, "takes",
                       "%s: %u files of weights (safetensors) and %u others, "
                       "%s: %s",
                       p->choice.stem, p->choice.n - p->choice.n_small, p->choice.n_small,
                       size_text(p->choice.bytes).s, why);
    else
        progress_print(&p->progress, "takes", "%s: %s, %u file%s, %s: %s", p->choice.stem,
                       text_or(quant, "GGUF"), p->choice.n, p->choice.n == 1 ? "" : "s",
                       size_text(p->choice.bytes).s, why);
    if (p->choice.too_large)
        progress_print(&p->progress, "warning", "%s do not fit into %s of free memory",
                       size_text(p->choice.bytes).s, size_text(p->memory).s);
}

static int load_files(struct pull *p, struct err *err) {
    uint64_t missing = 0;
    struct paths paths;
    struct fetch f;

    assert(p->choice.n > 0);
    for (uint32_t k = 0; k < p->choice.n; k++) {
        int r =
            plan_file(p, k, &paths, &f) ? files_make_folders(paths.target, 0777) : -ENAMETOOLONG;

        if (r < 0) {
            err_set(err, 0, NULL, "%.200s: %s; --models DIR takes another folder", paths.target,
                    strerror(-r));
            return CTL_REFUSED;
        }
        missing += fetch_missing(&f);
        /* the hub has checksums of large files only; those of a folder are read before the rest */
        if (!*f.sha256 && k >= p->choice.n_small)
            progress_print(&p->progress, "warning", "the hub has no checksum of %.200s",
                           p->listing.file[p->choice.file[k]].path);
    }
    *strrchr(paths.target, '/') = 0;
    int code = pull_check_form(p, paths.target, err);
    if (code == CTL_OK)
        code = pull_check_room(p, missing, paths.target, err);
    if (missing > 0 && code == CTL_OK)
        progress_print(&p->progress, "begins", "%s: %s of %s left to download", p->choice.stem,
                       size_text(missing).s, size_text(p->choice.bytes).s);
    for (uint32_t k = 0; code == CTL_OK && k < p->choice.n; k++) {
        plan_file(p, k, &paths, &f);
        progress_file(&p->progress, p->listing.file[p->choice.file[k]].path, f.sha256, f.size);
        code = fetch_file(&f, err);
        if (code == CTL_OK && k + 1 == p->choice.n_small)
            code = pull_check_small(p, err);
    }
    return code;
}

/* ---- the command ---- */

/* Prints the last line of JSON. */
static void print_last(const char *path, uint64_t bytes, const char *name) {
    yyjson_mut_doc *d = yyjson_mut_doc_new(NULL);
    yyjson_mut_val *root = yyjson_mut_obj(d);

    yyjson_mut_doc_set_root(d, root);
    yyjson_mut_obj_add_str(d, root, "status", "success");
    yyjson_mut_obj_add_str(d, root, "path", path);
    yyjson_mut_obj_add_str(d, root, "name", name);
    yyjson_mut_obj_add_uint(d, root, "bytes", bytes);
    ctl_print_json(d, stdout);
}

static int pull_fail(struct pull *p, int code, const struct err *err) {
    progress_clear(&p->progress);
    if (code != FETCH_INTERRUPTED)
        return cli_fail_as(code, "%s", err->message);
    if (p->json)
        return cli_fail_as(code, "interrupted");
    fprintf(stderr, "interrupted; the downloaded part is kept, and the same command continues\n");
    return code;
}

/* Reports where the file is, and whether it is a model that can be served. Returns an exit code. */
static int pull_done(struct pull *p, bool in_cache, struct err *err) {
    CLEANUP(gguf_freep) struct gguf *g = NULL;
    char path[4096];

    pull_model_path(p, in_cache, path, sizeof(path));
    int r;
    if (p->choice.folder)
        r = checkpoint_open(&g, path, err);
    else
        r = gguf_open(&g, path, err);
    if (r < 0) {
        if (!err->message[0])
            err_set(err, 0, NULL, "%.200s: %s", path, strerror(-r));
        return pull_fail(p, CTL_REFUSED, err);
    }
    if (engine_is_block(g))
        progress_print(&p->progress, "drafter",
                       "a draft model, for the option draft-model beside the model for which it "
                       "drafts: weftd --model MODEL --draft-model %.300s",
                       path);
    else if (engine_check(g, NULL, err) < 0)
        progress_print(&p->progress, "warning", "weftd cannot serve it: %s", err->message);
    progress_clear(&p->progress);
    if (p->json)
        print_last(path, p->choice.bytes, p->choice.stem);
    else
        printf("%s\n", path);
    return cli_flush(CLI_OK);
}

static int pull(struct pull *p, bool list) {
    struct err err = {0};
    const struct hub_options o = {.stall_s = p->stall_s, .stop = &stop};
    int r = hub_new(&p->hub, &o, &err);

    if (r < 0) {
        if (!err.message[0])
            err_set(&err, 0, NULL, "%s", strerror(-r));
        return pull_fail(p, CTL_REFUSED, &err);
    }
    int code = read_listing(p, &err);
    if (code != CTL_OK)
        return pull_fail(p, code, &err);
    r = hub_choose(&p->listing, &p->spec, p->memory, &p->choice, &err);
    if (list) {
        p->choice.n = r < 0 ? 0 : p->choice.n;
        return print_list(p);
    }
    if (r < 0)
        return pull_fail(p, CTL_REFUSED, &err);
    progress_model(&p->progress, p->choice.stem, p->choice.bytes);
    pull_print_choice(p);
    if (is_in_cache(p, 0, p->choice.n_shards)) {
        progress_print(&p->progress, "found", "%s is in the hub's cache already", p->choice.stem);
        if (!is_in_cache(p, p->choice.n_shards, p->choice.n))
            progress_print(&p->progress, "warning",
                           "the hub's cache lacks its projector, %.200s, which pictures need",
                           p->listing.file[p->choice.file[p->choice.n_shards]].path);
        return pull_done(p, true, &err);
    }
    code = load_files(p, &err);
    if (code == CTL_OK)
        return pull_done(p, false, &err);
    return pull_fail(p, code, &err);
}

int ctl_pull(int argc, char **argv, bool json) {
    struct pull p = {.stall_s = 30, .n_tries = 6, .json = json};
    const char *models = NULL;
    bool list = false;
    const struct cli_option options[] = {
        {"list", CLI_TRUE, &list, 0, 0},         {"json", CLI_TRUE, &p.json, 0, 0},
        {"models", CLI_TEXT, &models, 0, 0},     {"memory", CLI_U64, &p.memory, 1, 0x1p63},
        {"stall", CLI_U32, &p.stall_s, 1, 3600}, {"tries", CLI_U32, &p.n_tries, 1, 1000},
    };
    const struct sigaction sa = {.sa_handler = on_signal};
    struct err err = {0};
    int n_args, code = cli_parse(argc, argv, options, ARRAY_SIZE(options), usage, &n_args);

    if (code >= 0)
        return code;
    if (n_args != 1)
        return cli_usage("pull needs one hf:OWNER/REPO[:QUANT|:FILE]");
    if (hub_spec_parse(&p.spec, argv[1], &err) < 0)
        return cli_usage("%s", err.message);
    if (model_dirs_init(&p.dirs, models) < 0)
        return cli_fail_as(CTL_REFUSED, "out of memory");
    if (!p.memory)
        p.memory = memory_for_model(memory_available());
    sigaction(SIGINT, &sa, NULL);
    sigaction(SIGTERM, &sa, NULL);
    signal(SIGXFSZ, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    progress_init(&p.progress, p.json);
    code = pull(&p, list);
    hub_free(p.hub);
    hub_listing_deinit(&p.listing);
    model_dirs_deinit(&p.dirs);
    return code;
}
