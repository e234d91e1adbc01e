#pragma once

/*
 * projector_file - the file of a model's image encoder: the file that the option mmproj names, or
 * the one beside the model.
 */

#include "base/gguf.h"
#include "daemon/config/config.h"
#include "vision/projector.h"

struct tokenizer;

/* The file; zeroed: the model takes no pictures. */
struct projector_file {
    struct gguf *file;
    struct projector projector;
    uint8_t id[32]; /* digest of the file */
};

/* Returns true if the option names a file that can be read, or one lies beside the model. Any
 * thread. */
bool projector_file_is_there(const struct config *c);
/* Opens the file for the model @file, whose tokens are those of @t. A file beside the model that
 * does not fit it is ignored, with a warning in the log. Returns 0, or -errno with @err, which
 * begins with the option. */
int projector_file_open(struct projector_file *out, const struct config *c, const struct gguf *file,
                        const struct tokenizer *t, struct err *err);
void projector_file_deinit(struct projector_file *p);
