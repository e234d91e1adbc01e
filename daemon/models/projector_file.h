#pragma once

/*
 * projector_file - the file of a model's image encoder: the file that the option mmproj names, the
 * one beside the model, or the encoder in the model's folder.
 */

#include "base/gguf.h"
#include "daemon/config/config.h"
#include "vision/projector.h"

struct tokenizer;

/* The file; zeroed: the model takes no pictures. */
struct projector_file {
    struct gguf *file;
    struct projector projector;
    /* digest of the file */
    uint8_t id[32];
};

/* Names of the files of a folder that may be projectors, so that a scan of many models reads the
 * folder once. path NULL: no folder was read. */
struct projector_folder {
    char *path;
    char **name;
    size_t n;
};

void projector_folder_deinit(struct projector_folder *f); /* accepts a zeroed one */

/* Returns true if the option names a file that can be read, or one lies beside the model or in its
 * folder. Keeps the names beside the model in @f for the next call. Any thread. */
bool projector_file_is_there(const struct config *c, struct projector_folder *f);
/* Opens the file for the model @file, whose tokens are those of @t. A file beside the model that
 * does not fit it is ignored, with a warning in the log. Returns 0, or -errno with @err, which
 * begins with the option. */
int projector_file_open(struct projector_file *out, const struct config *c, const struct gguf *file,
                        const struct tokenizer *t, struct err *err);
void projector_file_deinit(struct projector_file *p);
