#pragma once

/*
 * checkpoint - opens a folder as Hugging Face's libraries publish models (config.json,
 * tokenizer.json, *.safetensors) as the same thing that a GGUF file is.
 *
 * The folder's small files become the keys of a GGUF header in memory, with the few tensors whose
 * values GGUF stores differently (norms in F32, for example). All large tensors stay where they
 * are: the header lists the places of their rows (base/gguf_build.h). So engine, tokenizer and
 * templates know nothing of folders, and a worker gets the header and the weight files as
 * descriptors.
 *
 * The table of architectures is in archs.c; docs/reference/checkpoints.md says what is supported.
 */

#include "base/gguf.h"

/* Opens the folder @dir. Returns as gguf_open(); @err names the file and the key. */
int checkpoint_open(struct gguf **out, const char *dir, struct err *err);

/* Opens @path, a projector file in GGUF or a folder, whose image encoder becomes such a file in
 * memory. Returns as gguf_open(). */
int checkpoint_open_projector(struct gguf **out, const char *path, struct err *err);

/* Returns true if the folder @dir has an image encoder of a kind that checkpoint_open_projector()
 * opens, by its config.json. */
bool checkpoint_has_projector(const char *dir);

/* Reads what the folder @dir has without its weights, and refuses what checkpoint_open() would
 * refuse: a download of many gigabytes begins after this. Returns 0 or -errno with @err. */
int checkpoint_check(const char *dir, struct err *err);

/* Opens @path, a GGUF file or such a folder. Returns as gguf_open(). */
int checkpoint_open_model(struct gguf **out, const char *path, struct err *err);

/* Finds the model in the folder @path: sets *file to the path of its only GGUF file, which the
 * caller frees, or to NULL if the folder itself is the model, and *bytes to the size. Returns 0;
 * -ENOMEM; or -EINVAL with @err if there is no model, or if it is not clear which one is meant. */
int checkpoint_find_model(const char *path, char **file, uint64_t *bytes, struct err *err);
