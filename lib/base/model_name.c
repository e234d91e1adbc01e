/* Names of model files: their parts, and which file of a list a name means. */

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/model_dir.h"
#include "base/try.h"

#define SHARD_TAIL "-00001-of-00001"
#define SHARDS_MAX 512u /* most shards that gguf_open() reads */

static bool model_name_digits(const char *p, size_t n, uint32_t *out) {
    uint32_t v = 0;

    for (size_t i = 0; i < n; i++) {
        if (!isdigit((unsigned char)p[i]))
            return false;
        v = v * 10 + (uint32_t)(p[i] - '0');
    }
    *out = v;
    return true;
}

static bool model_name_contains(const char *text, size_t len, const char *word) {
    size_t n = strlen(word);

    for (size_t i = 0; i + n <= len; i++)
        if (strncasecmp(text + i, word, n) == 0)
            return true;
    return false;
}

/* Reads the number of a shard at the end of the @len bytes of @stem, a file name without ".gguf".
 * Sets *out, without a number to the only file of a model. */
static void shard_parse(const char *stem, size_t len, struct model_name *out) {
    size_t tail = strlen(SHARD_TAIL);
    uint32_t shard, n_shards;

    *out = (struct model_name){len, 1, 1};
    if (len <= tail)
        return;
    const char *p = stem + len - tail;

    if (p[0] == '-' && strncmp(p + 6, "-of-", 4) == 0 && model_name_digits(p + 1, 5, &shard) &&
        model_name_digits(p + 10, 5, &n_shards) && shard >= 1 && shard <= n_shards &&
        n_shards <= SHARDS_MAX)
        *out = (struct model_name){len - tail, shard, n_shards};
}

bool model_name_parse(const char *name, struct model_name *out) {
    size_t len = strlen(name);
    struct model_name m;

    if (len < 6 || name[0] == '.' || strcasecmp(name + len - 5, ".gguf") != 0)
        return false;
    shard_parse(name, len - 5, &m);
    if (model_name_contains(name, m.stem_len, "mmproj") ||
        model_name_contains(name, m.stem_len, "imatrix"))
        return false;
    *out = m;
    return true;
}

size_t model_name_stem(const char *name, size_t len) {
    struct model_name m;

    if (len > 5 && strncasecmp(name + len - 5, ".gguf", 5) == 0)
        len -= 5;
    shard_parse(name, len, &m);
    return m.stem_len;
}

uint32_t model_name_shards(const char *name) {
    size_t len = strlen(name), end = strlen(".safetensors");
    struct model_name m;

    if (len <= end || strcasecmp(name + len - end, ".safetensors") != 0)
        return 0;
    shard_parse(name, len - end, &m);
    if (m.stem_len >= len - end)
        return 0;
    return m.n_shards;
}

/* Returns true if the whole of @p names a quantisation: Q4_0, Q4_K_M, IQ2_XXS, TQ1_0, F16,
 * MXFP4_MOE ... */
static bool model_name_is_quant(const char *p) {
    static const char *const whole[] = {"F16",   "BF16",      "F32",  "FP16",
                                        "MXFP4", "MXFP4_MOE", "NVFP4"};

    for (size_t i = 0; i < ARRAY_SIZE(whole); i++)
        if (strcasecmp(p, whole[i]) == 0)
            return true;
    if (strncasecmp(p, "IQ", 2) == 0 || strncasecmp(p, "TQ", 2) == 0)
        p++;
    if (toupper((unsigned char)*p) != 'Q' || !isdigit((unsigned char)p[1]))
        return false;
    for (p += 2; *p; p++)
        if (!isalnum((unsigned char)*p) && *p != '_')
            return false;
    return true;
}

const char *model_quant(const char *stem) {
    for (const char *p = stem + strlen(stem); p > stem; p--) {
        if (p[-1] != '-' && p[-1] != '.')
            continue;
        if (!model_name_is_quant(p))
            return NULL;
        if (p - stem >= 4 && strncasecmp(p - 3, "UD-", 3) == 0 && (p[-4] == '-' || p[-4] == '.'))
            return p - 3;
        return p;
    }
    return NULL;
}

/* Returns true if @text is the name of @f without its quantisation. */
static bool fits_without_quant(const struct model_file *f, const char *text) {
    const char *quant = model_quant(f->name);
    size_t len = quant ? (size_t)(quant - 1 - f->name) : 0;

    return quant && strlen(text) == len && strncasecmp(f->name, text, len) == 0;
}

/* Returns true if @text is OWNER/REPO[:QUANT] of @f; "-GGUF" at the end of the repository's name
 * may be left out. */
static bool fits_repo(const struct model_file *f, const char *text) {
    size_t len = strcspn(text, ":"), repo = strlen(f->repo);
    const char *quant = model_quant(f->name);

    if (repo == 0 || strncasecmp(f->repo, text, len) != 0 ||
        (repo != len && strcasecmp(f->repo + len, "-gguf") != 0))
        return false;
    return !text[len] || (quant && strcasecmp(quant, text + len + 1) == 0) ||
           strcasecmp(f->name, text + len + 1) == 0;
}

/* Writes @text without @tail at its end to @out, ignoring case. Returns false if @text does not end
 * so. */
static bool without(const char *text, const char *tail, char out[1024]) {
    size_t len = strlen(text), n = strlen(tail);

    if (len <= n || len >= 1024 || strcasecmp(text + len - n, tail) != 0)
        return false;
    memcpy(out, text, len - n);
    out[len - n] = 0;
    return true;
}

static bool fits_name(const struct model_file *f, const char *text) {
    size_t stem = model_name_stem(text, strlen(text));
    char bare[1024];

    return strcasecmp(f->name, text) == 0 ||
           (strlen(f->name) == stem && strncasecmp(f->name, text, stem) == 0) ||
           (without(text, ":latest", bare) && strcasecmp(f->name, bare) == 0) ||
           (without(f->name, ":latest", bare) && strcasecmp(bare, text) == 0);
}

/* Returns true if @text means @f by the rule number @way. */
static bool model_name_fits(const struct model_file *f, const char *text, int way) {
    switch (way) {
    case 0:
        return strcmp(f->name, text) == 0;
    case 1:
        return fits_name(f, text);
    case 2:
        return fits_repo(f, strncmp(text, "hf:", 3) == 0 ? text + 3 : text);
    default:
        return fits_without_quant(f, text);
    }
}

#define WAYS 4

/* Writes the names that match rule @way, or all names, to @out, as far as they fit. */
static void model_name_list(const struct model_list *l, const char *text, int way, char *out,
                            size_t size) {
    size_t n = 0;

    out[0] = 0;
    for (size_t i = 0; i < l->n; i++) {
        const char *name = l->file[i].name;

        if (way < WAYS && !model_name_fits(&l->file[i], text, way))
            continue;
        if (n + strlen(name) + 8 > size) {
            snprintf(out + n, size - n, ", ...");
            return;
        }
        n += (size_t)snprintf(out + n, size - n, "%s%s", n ? ", " : "", name);
    }
}

static int check_whole(const struct model_file *f, struct err *err) {
    if (f->n_missing == 0)
        return 0;
    return err_set(err, 0, NULL, "%.80s: %u of its %u files are missing", f->name, f->n_missing,
                   f->n_files);
}

int model_find(const struct model_list *l, const char *text, const struct model_file **out,
               struct err *err) {
    char names[240];

    for (int way = 0; *text && way < WAYS; way++) {
        const struct model_file *found = NULL;
        size_t n = 0;

        for (size_t i = 0; i < l->n; i++)
            if (model_name_fits(&l->file[i], text, way)) {
                n++;
                found = &l->file[i];
            }
        if (n > 1) {
            model_name_list(l, text, way, names, sizeof(names));
            return err_set(err, 0, NULL, "%.80s matches several models; name one of them: %s", text,
                           names);
        }
        if (n == 0)
            continue;
        TRY(check_whole(found, err));
        *out = found;
        return 0;
    }
    model_name_list(l, text, WAYS, names, sizeof(names));
    if (l->n)
        err_set(err, 0, NULL, "there is no model %.80s; the models are: %s", text, names);
    else
        err_set(err, 0, NULL,
                "there is no model %.80s, and no other one on this machine; weftctl pull "
                "hf:OWNER/REPO downloads one",
                text);
    return -ENOENT;
}

/* Removes the models that are folders. */
static void model_name_drop_folders(struct model_list *l) {
    size_t n = 0;

    for (size_t i = 0; i < l->n; i++) {
        struct model_file f = l->file[i];

        if (!f.folder) {
            l->file[n++] = f;
            continue;
        }
        free(f.name);
        free(f.path);
        free(f.repo);
    }
    l->n = n;
}

int model_in_folder(const char *path, char **file, uint64_t *bytes, struct err *err) {
    size_t len = strlen(path);
    char names[240];

    while (len > 1 && path[len - 1] == '/')
        len--;
    CLEANUP(freep) char *root = strndup(path, len);
    CLEANUP(model_list_deinit) struct model_list list = {0};

    if (!root)
        return -ENOMEM;
    TRY(model_list_read(&list, &(struct model_dirs){.root = {[MODEL_WEFT] = root}}));
    model_name_drop_folders(&list);
    if (list.n == 0) {
        err_set(err, 0, NULL,
                "%.200s: the folder contains neither a GGUF file of a model nor safetensors", root);
        return -ENOENT;
    }
    if (list.n > 1) {
        model_name_list(&list, "", WAYS, names, sizeof(names));
        return err_set(err, 0, NULL,
                       "%.200s: the folder contains several models; name the file of one: %s", root,
                       names);
    }
    TRY(check_whole(&list.file[0], err));
    *bytes = list.file[0].bytes;
    *file = STEAL(list.file[0].path);
    return 0;
}

/* ---- projectors ---- */

/* Copies the letters and digits of @s in lower case, so that different spellings of a name become
 * equal. */
static void plain(const char *s, size_t len, char out[256]) {
    size_t n = 0;

    for (size_t i = 0; i < len && n < 255; i++)
        if (isalnum((unsigned char)s[i]))
            out[n++] = (char)tolower((unsigned char)s[i]);
    out[n] = 0;
}

/* Returns the rank of a projector's format in its name, from 1, the best. In the plain name
 * "4B-F16" would be a BF16. */
static int model_name_rank(const char *name) {
    static const char *const formats[] = {"f16", "bf16", "q8", "f32"};

    for (size_t i = 0; i < ARRAY_SIZE(formats); i++)
        if (strcasestr(name, formats[i]) && (i > 0 || !strcasestr(name, "bf16")))
            return (int)i + 1;
    return ARRAY_SIZE(formats) + 1;
}

/* Returns true if the plain name does not name a model. */
static bool is_general(const char *name) {
    static const char *const words[] = {"mmproj", "model", "gguf", "bf16", "f16", "f32", "q80"};
    const char *at = name;

    while (*at) {
        size_t i = 0;

        while (i < ARRAY_SIZE(words) && strncmp(at, words[i], strlen(words[i])) != 0)
            i++;
        if (i == ARRAY_SIZE(words))
            return false;
        at += strlen(words[i]);
    }
    return true;
}

int model_projector_fit(const char *name, const char *model) {
    char p[256], bare[256], stem[256];
    struct model_name parts;
    size_t stem_len = model_name_stem(model, strlen(model));

    if (!strcasestr(name, "mmproj") || strlen(name) < 5 ||
        strcasecmp(name + strlen(name) - 5, ".gguf") != 0 || stem_len >= sizeof(bare))
        return 0;
    snprintf(bare, sizeof(bare), "%.*s", (int)stem_len, model);
    const char *quant = model_quant(bare);
    plain(bare, quant ? (size_t)(quant - bare) : strlen(bare), stem);
    plain(name, strlen(name), p);
    if (*stem && strstr(p, stem))
        return 200 - model_name_rank(name);
    if (!model_name_parse(model, &parts) || !is_general(p)) /* folders lie beside many others */
        return 0;
    return 100 - model_name_rank(name);
}
