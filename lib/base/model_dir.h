#pragma once

/*
 * model_dir - lists the models of this user by name: those in weft's own folder, and those that
 * other programs have downloaded (the cache of the Hugging Face hub, LM Studio, Ollama), which are
 * used in place. It reads only names, sizes and manifests; gguf_open() and checkpoint_open() check
 * the files themselves. Files of projectors ("mmproj") and importance matrices are not listed.
 */

#include <stdbool.h>

#include "base/err.h"

/* Owners of the files, in the order of the list. */
enum model_store { MODEL_WEFT, MODEL_HUB, MODEL_LMSTUDIO, MODEL_OLLAMA, MODEL_N_STORES };

/* Returns "weft", "hub", "lmstudio" or "ollama"; static. */
const char *model_store_name(enum model_store store);

/* Root folder of each store; NULL: the store is not searched. */
struct model_dirs {
    char *root[MODEL_N_STORES];
};

/*
 * Finds the roots from the environment. weft's own: @option, else $WEFT_MODELS,
 * $STATE_DIRECTORY/models (systemd sets it for a service, /var/lib/weft),
 * $XDG_DATA_HOME/weft/models, ~/.local/share/weft/models; without a home /var/lib/weft/models. The
 * hub's: $HF_HUB_CACHE, $HF_HOME/hub, $XDG_CACHE_HOME/huggingface/hub, ~/.cache/huggingface/hub. LM
 * Studio's: $LMSTUDIO_MODELS, ~/.lmstudio/models, ~/.cache/lm-studio/models. Ollama's:
 * $OLLAMA_MODELS, ~/.ollama/models, /usr/share/ollama/.ollama/models. The first variable that is
 * set counts; default folders of LM Studio and Ollama count only if they exist. @option may be
 * NULL. Returns 0 or -ENOMEM.
 */
int model_dirs_init(struct model_dirs *d, const char *option);
void model_dirs_deinit(struct model_dirs *d); /* frees the roots; accepts a zeroed one */

/* A model; the list owns its strings. */
struct model_file {
    /* unique name in its list: "Qwen3-0.6B-Q4_K_M", "llama3.2:3b" */
    char *name;
    /* path, absolute if the root is; the first shard of a split model, or the folder; printable
     * UTF-8 */
    char *path;
    /* "Qwen/Qwen3-0.6B-GGUF", if the path contains it; else "" */
    char *repo;
    enum model_store store;
    /* a folder with config.json and safetensors, in which no GGUF file is */
    bool folder;
    /* number of shards of a split model; else 1 */
    uint32_t n_files;
    /* number of missing shards; above 0 the model cannot be served */
    uint32_t n_missing;
    uint64_t bytes;
};

/* Models ordered by store, then path, then name. */
struct model_list {
    struct model_file *file;
    size_t n;
};

#define MODEL_LIST_MAX 4096u /* most models of a list; further ones are left out */

/* Lists the models in @d now: GGUF files, and folders of safetensors, in the hub's cache only whole
 * snapshots. Missing and unreadable folders count as empty. A file that is reached by several paths
 * is listed once: by the first store, there by a path that is no symbolic link, and then by the
 * first path in alphabetical order. Ollama's names for one file are all listed. Returns 0 or
 * -ENOMEM. */
int model_list_read(struct model_list *out, const struct model_dirs *d);
void model_list_deinit(struct model_list *l); /* frees files and names; accepts a zeroed one */

/*
 * Finds the model that @text names. The first of these rules that matches a model decides:
 *   - the model's name;
 *   - its name without regard to case, with the number of a shard or ".gguf" appended, or without
 *     Ollama's ":latest";
 *   - hf:OWNER/REPO[:QUANT], OWNER/REPO[:QUANT], or the name without the quantisation, if one model
 *     alone matches.
 * *out lives as long as the list. Returns 0; -ENOENT; or -EINVAL if several models match or shards
 * are missing. @err (may be NULL) names the models that are there.
 */
int model_find(const struct model_list *l, const char *text, const struct model_file **out,
               struct err *err);

/* Finds the only GGUF model in the folder @path and the folders below it. Returns 0 with its path,
 * which the caller frees, and its size; -ENOMEM; or with @err -ENOENT if there is none, and -EINVAL
 * if there are several, which it names, or if shards are missing. */
int model_in_folder(const char *path, char **file, uint64_t *bytes, struct err *err);

/* Returns the name of the folder number @i that is a part of a model in whose folder it lies
 * (lib/checkpoint/pooling.c); NULL: there are no more. */
const char *model_dir_part(uint32_t i);

/* Returns the start of the quantisation's name ("Q4_K_M", "UD-Q4_K_XL", "BF16") at the end of
 * @stem, a file name without ".gguf" and without the number of a shard; NULL if it has none. */
const char *model_quant(const char *stem);

/*
 * Parts of a file name without folders: the length of its stem, and for "STEM-00002-of-00003.gguf"
 * the numbers 2 and 3, else 1 and 1. model_name_parse() returns false if the name is not that of a
 * model.
 */
struct model_name {
    size_t stem_len;
    uint32_t shard, n_shards;
};
bool model_name_parse(const char *name, struct model_name *out);
/* Returns the length of the @len bytes of @name without ".gguf" and without the number of a shard,
 * where it has them. */
size_t model_name_stem(const char *name, size_t len);

/* Returns the number of shards that the name of a safetensors file says
 * ("model-00002-of-00003.safetensors"); 0: it has none, or is no such name. */
uint32_t model_name_shards(const char *name);

/* Returns how well the file @name suits model file @model as its projector (both without folders);
 * 0: not at all. A name with "mmproj" and the model's name without its quantisation is better than
 * a name with "mmproj" and only a format; among equals the most exact format that is not larger
 * than F16 is the best. */
int model_projector_fit(const char *name, const char *model);
