/* Reads the listing of a repository and chooses the files that a name means. */

#include "cmd/ctl_hub.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <yyjson.h>

#include "base/json_read.h"
#include "base/model_dir.h"
#include "base/printable.h"
#include "base/result.h"
#include "base/text.h"
#include "base/try.h"

#define FILES_MAX 20000u

/* Quantisations that are taken without a choice of the user, in this order: the usual balance of
 * size and quality, then its neighbours, then larger ones, then smaller ones. */
static const char *const preferred[] = {
    "Q4_K_M", "UD-Q4_K_XL", "Q4_K_S",  "MXFP4", "MXFP4_MOE", "IQ4_NL", "IQ4_XS", "Q4_0",
    "Q4_1",   "Q5_K_M",     "Q5_K_S",  "Q5_0",  "Q6_K",      "Q8_0",   "Q3_K_L", "Q3_K_M",
    "Q3_K_S", "IQ3_S",      "IQ3_XXS", "Q2_K",  "IQ2_XXS",   "BF16",   "F16",    "F32",
};

/* ---- the specification ---- */

static bool hub_is_name(const char *p, size_t len) {
    return len > 0 && len < 100 && *p != '.' && *p != '-' &&
           strspn(p, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") >= len;
}

/* Returns whether @p is a printable, relative path none of whose parts is empty, hidden or leads
 * upwards. It becomes the name of a file, and of a model that every client sees. */
static bool hub_is_path(const char *p) {
    if (strlen(p) >= 512 || !is_printable(p) || strchr(p, '\\'))
        return false;
    for (;; p++) {
        size_t len = strcspn(p, "/");

        if (len == 0 || len > 200 || *p == '.')
            return false;
        p += len;
        if (!*p)
            return true;
    }
}

static const char *without_prefix(const char *text) {
    static const char *const prefixes[] = {"hf:", "https://huggingface.co/", "huggingface.co/",
                                           "https://hf.co/", "hf.co/"};

    for (size_t i = 0; i < ARRAY_SIZE(prefixes); i++)
        if (strncasecmp(text, prefixes[i], strlen(prefixes[i])) == 0)
            return text + strlen(prefixes[i]);
    return text;
}

int hub_spec_parse(struct hub_spec *out, const char *text, struct err *err) {
    struct hub_spec s = {.revision = "main"};
    const char *p = without_prefix(text), *slash = strchr(p, '/');
    size_t len = strcspn(p, ":@"), owner = slash ? (size_t)(slash - p) : 0;

    if (!slash && hub_is_name(p, len)) /* a name of Ollama's registry, or a part of one */
        return err_set(
            err, 0, NULL,
            "\"%.100s\" has no owner, and Ollama's registry is not read. Choose a model at "
            "https://huggingface.co/models?library=gguf&search=%.*s and pull "
            "hf:OWNER/REPO[:QUANT|:FILE], such as hf:unsloth/Qwen3-8B-GGUF:Q4_K_M",
            text, (int)len, p);
    if (!slash || len >= sizeof(s.repo) || owner >= len || !hub_is_name(p, owner) ||
        !hub_is_name(slash + 1, len - owner - 1))
        return err_set(err, 0, NULL, "\"%.100s\" is not hf:OWNER/REPO[:QUANT|:FILE]", text);
    memcpy(s.repo, p, len);
    p += len;
    if (*p == ':') {
        len = strcspn(++p, "@");
        if (len == 0 || len >= sizeof(s.what))
            return err_set(err, 0, NULL, "\"%.100s\": after the colon comes a quant or a file",
                           text);
        memcpy(s.what, p, len);
        s.is_file = len > 5 && strcasecmp(s.what + len - 5, ".gguf") == 0;
        if (s.is_file && !hub_is_path(s.what))
            return err_set(err, 0, NULL, "\"%.100s\" is not the path of a file", s.what);
        p += len;
    }
    if (*p == '@') {
        if (!hub_is_path(p + 1) || strlen(p + 1) >= sizeof(s.revision))
            return err_set(err, 0, NULL, "\"%.100s\": after the @ comes a branch or a commit",
                           text);
        strcpy(s.revision, p + 1);
    }
    if (strcasecmp(s.what, "latest") == 0) /* word of Ollama for the default */
        s.what[0] = 0;
    *out = s;
    return 0;
}

/* ---- the listing ---- */

void hub_listing_deinit(struct hub_listing *l) {
    for (size_t i = 0; i < l->n; i++)
        free(l->file[i].path);
    free(l->file);
    *l = (struct hub_listing){0};
}

static bool is_hex(const char *s, size_t len) {
    return strlen(s) == len && strspn(s, "0123456789abcdef") == len;
}

static const char *hub_text(yyjson_val *object, const char *key) {
    const char *s = json_cstr(yyjson_obj_get(object, key));

    if (s)
        return s;
    return "";
}

static int hub_read_file(struct hub_file *out, yyjson_val *v) {
    yyjson_val *lfs = yyjson_obj_get(v, "lfs"), *size = yyjson_obj_get(v, "size");
    const char *sum = hub_text(lfs, "sha256");

    if (!*sum)
        sum = hub_text(lfs, "oid"); /* name of the member in listings of file trees */
    if (yyjson_is_uint(yyjson_obj_get(lfs, "size")))
        size = yyjson_obj_get(lfs, "size");
    out->path = strdup(hub_text(v, "rfilename"));
    out->size = yyjson_is_uint(size) && yyjson_get_uint(size) <= INT64_MAX ? yyjson_get_uint(size)
                                                                           : 0; /* not known */
    snprintf(out->sha256, sizeof(out->sha256), "%s", is_hex(sum, 64) ? sum : "");
    return enomem_unless(out->path);
}

int hub_listing_read(struct hub_listing *out, const char *json, size_t len, struct err *err) {
    CLEANUP(json_doc_freep) yyjson_doc *doc = yyjson_read(json, len, 0);
    yyjson_val *root = yyjson_doc_get_root(doc), *files = yyjson_obj_get(root, "siblings");
    CLEANUP(hub_listing_deinit) struct hub_listing l = {0};
    size_t n_files = yyjson_arr_size(files);

    snprintf(l.commit, sizeof(l.commit), "%s", hub_text(root, "sha"));
    if (!yyjson_is_arr(files) || !is_hex(l.commit, 40) || n_files > FILES_MAX)
        return err_set(err, 0, NULL, "the hub's answer is not the listing of a repository");
    if (n_files > 0 && !(l.file = calloc(n_files, sizeof(*l.file))))
        return -ENOMEM;
    JSON_EACH(v, files) {
        if (!hub_is_path(hub_text(v, "rfilename")))
            continue;
        TRY(hub_read_file(&l.file[l.n], v));
        l.n++;
    }
    *out = l;
    l = (struct hub_listing){0};
    return 0;
}

/* ---- the choice ---- */

static const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');

    if (!slash)
        return path;
    return slash + 1;
}

/* A model of the listing, identified by its only or first file. */
struct candidate {
    uint32_t file;
    struct model_name name;
    char stem[256];
};

static bool is_candidate(const struct hub_listing *l, uint32_t i, struct candidate *out) {
    assert(i < l->n);
    const char *name = base_name(l->file[i].path);
    struct model_name parts;

    if (!model_name_parse(name, &parts) || parts.shard != 1)
        return false;
    out->file = i;
    out->name = parts;
    snprintf(out->stem, sizeof(out->stem), "%.*s", (int)parts.stem_len, name);
    return true;
}

/* Returns whether the quantisation of @c is @quant; without @exactly, also in Unsloth's form of the
 * name. */
static bool hub_is_quant(const struct candidate *c, const char *quant, bool exactly) {
    const char *q = model_quant(c->stem);

    return q && (strcasecmp(q, quant) == 0 ||
                 (!exactly && strncasecmp(q, "UD-", 3) == 0 && strcasecmp(q + 3, quant) == 0));
}

static bool is_meant(const struct hub_listing *l, const struct candidate *c, const char *what,
                     bool is_file, bool exactly) {
    const char *path = l->file[c->file].path;

    if (!is_file)
        return hub_is_quant(c, what, exactly);
    return strcmp(path, what) == 0 || (!exactly && strcasecmp(base_name(path), what) == 0);
}

/* Finds the only candidate that @what names. Returns 0, -ENOENT, or -EINVAL if there are
 * several. */
static int hub_find(const struct hub_listing *l, const char *what, bool is_file,
                    struct candidate *out, struct err *err) {
    for (int exactly = 1; exactly >= 0; exactly--) {
        struct candidate c;
        size_t n = 0;

        for (uint32_t i = 0; i < l->n; i++) {
            if (!is_candidate(l, i, &c) || !is_meant(l, &c, what, is_file, exactly))
                continue;
            if (n++ > 0)
                return err_set(err, 0, NULL, "%s matches %.80s and %.80s; name the file", what,
                               l->file[out->file].path, l->file[i].path);
            *out = c;
        }
        if (n == 1)
            return 0;
    }
    return -ENOENT;
}

/* Lists the quantisations, and the names of files without one. Returns the number of models. */
static size_t list_quants(const struct hub_listing *l, char *out, size_t size) {
    struct candidate c;
    size_t n = 0, n_models = 0;

    out[0] = 0;
    for (uint32_t i = 0; i < l->n; i++) {
        if (!is_candidate(l, i, &c))
            continue;
        const char *quant = model_quant(c.stem);
        const char *name = quant ? quant : base_name(l->file[i].path);

        n_models++;
        if (n + strlen(name) + 8 <= size)
            n += (size_t)snprintf(out + n, size - n, "%s%s", n ? ", " : "", name);
    }
    return n_models;
}

/* Chooses all shards of @c, each of which must be listed. */
static int choose_shards(const struct hub_listing *l, const struct candidate *c,
                         struct hub_choice *out, struct err *err) {
    const char *first = l->file[c->file].path;
    int prefix = (int)(base_name(first) - first) + (int)c->name.stem_len;

    assert(c->name.n_shards > 0 && c->name.n_shards < ARRAY_SIZE(out->file));
    out->n = out->n_shards = c->name.n_shards;
    out->bytes = 0;
    snprintf(out->stem, sizeof(out->stem), "%s", c->stem);
    for (uint32_t k = 0; k < out->n; k++) {
        char path[600];
        uint32_t i = c->file;

        if (out->n > 1) {
            snprintf(path, sizeof(path), "%.*s-%05u-of-%05u.gguf", prefix, first, k + 1, out->n);
            for (i = 0; i < l->n && strcmp(l->file[i].path, path) != 0; i++)
                ;
            if (i == l->n)
                return err_set(err, 0, NULL, "the repository lacks %.200s", path);
        }
        out->file[k] = i;
        if (l->file[i].size == 0 ||
            __builtin_add_overflow(out->bytes, l->file[i].size, &out->bytes))
            return err_set(err, 0, NULL, "the hub does not say how large %.200s is",
                           l->file[i].path);
    }
    return 0;
}

/* Adds the projector that suits the chosen model best, if there is one. */
static void add_projector(const struct hub_listing *l, struct hub_choice *out) {
    const char *model = base_name(l->file[out->file[0]].path);
    uint64_t bytes = out->bytes;
    int best = 0;

    for (uint32_t i = 0; i < l->n; i++) {
        int fit = model_projector_fit(base_name(l->file[i].path), model);

        if (fit > best && l->file[i].size > 0 &&
            !__builtin_add_overflow(bytes, l->file[i].size, &out->bytes)) {
            best = fit;
            out->n = out->n_shards + 1;
            out->file[out->n_shards] = i;
        }
    }
}

bool hub_model_at(const struct hub_listing *l, uint32_t i, struct hub_choice *out) {
    struct candidate c;

    return is_candidate(l, i, &c) && choose_shards(l, &c, out, NULL) == 0;
}

/* Returns true if weftd can serve the model in @memory bytes: it leaves a sixteenth of them free,
 * and buffers and the keys of a short context take a tenth of a model of 8B in four bits. */
static bool hub_fits(const struct hub_choice *c, uint64_t memory) {
    return memory == 0 || c->bytes <= memory / 6 * 5;
}

static int hub_choose_file(const struct hub_listing *l, const struct candidate *c, uint64_t memory,
                           struct hub_choice *out, struct err *err) {
    TRY(choose_shards(l, c, out, err));
    add_projector(l, out);
    out->too_large = !hub_fits(out, memory);
    return 0;
}

/* Chooses the folder of safetensors. Returns the result of hub_choose_folder(). */
static int hub_choose_weights(const struct hub_listing *l, const struct hub_spec *spec,
                              uint64_t memory, struct hub_choice *out, struct err *err) {
    TRY(hub_choose_folder(l, spec, out, err));
    out->too_large = !hub_fits(out, memory);
    return 0;
}

/* Chooses the first model of the order that fits into @memory, else the first of the order. Returns
 * 0, -ENOENT: the repository has none of the order, or -EINVAL with @err. */
static int hub_choose_usual(const struct hub_listing *l, uint64_t memory, struct hub_choice *out,
                            struct err *err) {
    struct hub_choice next = {0};
    struct candidate c;
    bool any = false;

    for (size_t k = 0; k < ARRAY_SIZE(preferred) && (!any || out->too_large); k++) {
        int r = hub_find(l, preferred[k], false, &c, err);

        if (r == -ENOENT)
            continue;
        TRY(r);
        TRY(hub_choose_file(l, &c, memory, &next, err));
        next.instead = any;
        if (!any || !next.too_large)
            *out = next;
        any = true;
    }
    if (!any)
        return -ENOENT;
    return 0;
}

/* Chooses among the GGUF models. Returns 0, -ENOENT: none is usual, or -EINVAL with @err. */
static int hub_choose_gguf(const struct hub_listing *l, size_t n_models, uint64_t memory,
                           struct hub_choice *out, struct err *err) {
    struct candidate c;

    for (uint32_t i = 0; n_models == 1 && i < l->n; i++)
        if (is_candidate(l, i, &c))
            return hub_choose_file(l, &c, memory, out, err);
    return hub_choose_usual(l, memory, out, err);
}

/* Chooses the model for a specification that names only the repository. Returns 0, -ENOENT, or
 * -EINVAL with @err. */
static int hub_choose_default(const struct hub_listing *l, const struct hub_spec *spec,
                              size_t n_models, uint64_t memory, struct hub_choice *out,
                              struct err *err) {
    struct hub_choice folder = {0};

    if (n_models == 0)
        return hub_choose_weights(l, spec, memory, out, err);
    int r = hub_choose_gguf(l, n_models, memory, out, err);
    if (r != -ENOENT && (r < 0 || !out->too_large))
        return r;
    if (hub_choose_weights(l, spec, memory, &folder, NULL) < 0 || (r == 0 && folder.too_large))
        return r;
    folder.instead = true;
    *out = folder;
    return 0;
}

int hub_choose(const struct hub_listing *l, const struct hub_spec *spec, uint64_t memory,
               struct hub_choice *out, struct err *err) {
    struct candidate c;
    char names[240];
    size_t n_models = list_quants(l, names, sizeof(names));
    bool wants_folder = strcasecmp(spec->what, "safetensors") == 0;
    int r;

    *out = (struct hub_choice){0};
    if (wants_folder)
        r = hub_choose_weights(l, spec, memory, out, err);
    else if (!*spec->what)
        r = hub_choose_default(l, spec, n_models, memory, out, err);
    else if ((r = hub_find(l, spec->what, spec->is_file, &c, err)) == 0)
        r = hub_choose_file(l, &c, memory, out, err);
    if (r != -ENOENT)
        return r;
    if (wants_folder || (n_models == 0 && !*spec->what))
        return err_set(err, 0, NULL, "%s contains no GGUF model files and no folder of safetensors",
                       spec->repo);
    if (n_models == 0)
        return err_set(err, 0, NULL,
                       "%s contains no GGUF model files; without :%s it is taken as "
                       "a folder of safetensors",
                       spec->repo, spec->what);
    return err_set(err, 0, NULL, "%s has %s%s; available: %s", spec->repo, *spec->what ? "no " : "",
                   text_filled_or(spec->what, "no usual quant"), names);
}
