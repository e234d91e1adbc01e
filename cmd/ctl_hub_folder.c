/* Chooses the files of a repository that has a model as a folder of safetensors. */

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/model_dir.h"
#include "base/try.h"
#include "cmd/ctl_hub.h"

/* Most bytes of a file that describes the model: more is nothing that the engine reads. */
#define SMALL_MAX (64u << 20)

/* Files that checkpoint_open() reads beside the weights; instead: the one that it reads where there
 * is no such file. Draft models may have no tokenizer. */
static const struct {
    const char *name, *instead;
    bool must;
} small_files[] = {
    {"config.json", NULL, true},
    {"tokenizer.json", "tokenizer.model", false},
    {"added_tokens.json", NULL, false},
    {"tokenizer_config.json", NULL, false},
    {"special_tokens_map.json", NULL, false},
    {"generation_config.json", NULL, false},
    {"chat_template.jinja", NULL, false},
    {"preprocessor_config.json", NULL, false},
    {"processor_config.json", NULL, false},
    {"model.safetensors.index.json", NULL, false},
    {"1_Pooling/config.json", NULL, false},
    {"2_Dense/config.json", NULL, false},
    {"3_Dense/config.json", NULL, false},
};

/* Weights beside those of the model: matrices behind the pooling of an encoder. */
static const char *const dense_files[] = {"2_Dense/model.safetensors", "3_Dense/model.safetensors"};

/* Returns the file @path of the listing; l->n: there is none, or it is empty. */
static uint32_t hub_folder_find(const struct hub_listing *l, const char *path) {
    uint32_t i = 0;

    while (i < l->n && (strcmp(l->file[i].path, path) != 0 || l->file[i].size == 0))
        i++;
    return i;
}

static int hub_folder_choose(const struct hub_listing *l, uint32_t i, struct hub_choice *out,
                             struct err *err) {
    if (out->n == ARRAY_SIZE(out->file))
        return err_set(err, 0, NULL, "the repository has more than %u weight files", out->n);
    if (l->file[i].size == 0 || __builtin_add_overflow(out->bytes, l->file[i].size, &out->bytes))
        return err_set(err, 0, NULL, "the hub does not say how large %.200s is", l->file[i].path);
    out->file[out->n++] = i;
    return 0;
}

static int hub_folder_choose_small(const struct hub_listing *l, const struct hub_spec *spec,
                                   struct hub_choice *out, struct err *err) {
    for (size_t k = 0; k < ARRAY_SIZE(small_files); k++) {
        uint32_t i = hub_folder_find(l, small_files[k].name);

        if (i == l->n && small_files[k].instead)
            i = hub_folder_find(l, small_files[k].instead);
        if (i == l->n && !small_files[k].must)
            continue;
        if (i == l->n)
            return err_set(err, 0, NULL, "%s has safetensors but no %s", spec->repo,
                           small_files[k].name);
        if (l->file[i].size > SMALL_MAX)
            return err_set(err, 0, NULL, "%s has %llu bytes; at most %u are read", l->file[i].path,
                           (unsigned long long)l->file[i].size, SMALL_MAX);
        TRY(hub_folder_choose(l, i, out, err));
    }
    out->n_small = out->n;
    return 0;
}

/* Returns true if @path is a shard of Hugging Face's own form at the top of the repository. Other
 * weights of the same model (consolidated.safetensors of Mistral) are not needed. */
static bool hub_folder_is_shard(const char *path) {
    return strncmp(path, "model", 5) == 0 && !strchr(path, '/') && model_name_shards(path) > 0;
}

/* Takes all shards, of which none may be missing. */
static int hub_folder_choose_shards(const struct hub_listing *l, struct hub_choice *out,
                                    struct err *err) {
    uint32_t of = 0, n = 0;

    for (uint32_t i = 0; i < l->n; i++) {
        if (!hub_folder_is_shard(l->file[i].path))
            continue;
        if (of != 0 && model_name_shards(l->file[i].path) != of)
            return err_set(err, 0, NULL, "the repository has weights in %u and in %u shards", of,
                           model_name_shards(l->file[i].path));
        of = model_name_shards(l->file[i].path);
        n++;
        TRY(hub_folder_choose(l, i, out, err));
    }
    if (n != of)
        return err_set(err, 0, NULL, "the repository has %u of its %u weight files", n, of);
    return 0;
}

/* Takes the only weight file: model.safetensors, or one of another name. */
static int hub_folder_choose_single(const struct hub_listing *l, struct hub_choice *out,
                                    struct err *err) {
    uint32_t single = hub_folder_find(l, "model.safetensors"), n = 0;

    for (uint32_t i = 0; single == l->n && i < l->n; i++) {
        const char *path = l->file[i].path, *end = strrchr(path, '.');

        if (!end || strcmp(end, ".safetensors") != 0 || strchr(path, '/'))
            continue;
        if (n++ > 0)
            return err_set(err, 0, NULL,
                           "the repository has several safetensors files, of which none is "
                           "model.safetensors");
        single = i;
    }
    if (single == l->n)
        return -ENOENT;
    return hub_folder_choose(l, single, out, err);
}

int hub_choose_folder(const struct hub_listing *l, const struct hub_spec *spec,
                      struct hub_choice *out, struct err *err) {
    struct hub_choice c = {.folder = true};
    bool sharded = false, any = false;

    for (uint32_t i = 0; i < l->n; i++) {
        const char *end = strrchr(l->file[i].path, '.');

        sharded |= hub_folder_is_shard(l->file[i].path);
        any |= end && strcmp(end, ".safetensors") == 0 && !strchr(l->file[i].path, '/');
    }
    if (!any)
        return -ENOENT;
    TRY(hub_folder_choose_small(l, spec, &c, err));
    for (size_t k = 0; k < ARRAY_SIZE(dense_files); k++) {
        uint32_t i = hub_folder_find(l, dense_files[k]);

        if (i < l->n)
            TRY(hub_folder_choose(l, i, &c, err));
    }
    if (sharded)
        TRY(hub_folder_choose_shards(l, &c, err));
    else
        TRY(hub_folder_choose_single(l, &c, err));
    c.n_shards = c.n;
    snprintf(c.stem, sizeof(c.stem), "%s", strrchr(spec->repo, '/') + 1);
    *out = c;
    return 0;
}
