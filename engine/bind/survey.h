#pragma once

/*
 * survey - what reading a file as a known architecture asks of it: the names of the tensors and
 * keys that the architecture knows, and of those that it needs and the file lacks. Used for a file
 * whose own architecture is unknown (nearest.h). Numbers of layers are left out, so
 * "blk.7.attn_q.weight" is "attn_q.weight".
 */

#include <stdbool.h>
#include <stdint.h>

#include "base/gguf.h"

enum { SURVEY_NAMES = 512, SURVEY_CHARS = 64 };

/* A set of names in the order in which they were added. More than SURVEY_NAMES are not kept, and a
 * longer name is cut. */
struct survey_names {
    uint32_t n;
    char name[SURVEY_NAMES][SURVEY_CHARS];
};

struct survey {
    /* of the keys: the file's own architecture */
    const char *prefix;
    /* tensors */
    struct survey_names known;
    /* tensors that the file lacks */
    struct survey_names missing;
    /* keys, without @prefix */
    struct survey_names keys;
};

/* Returns @name without "blk.N.". */
const char *survey_part(const char *name);
void survey_add(struct survey_names *s, const char *name);
bool survey_has(const struct survey_names *s, const char *name);
/* Records a tensor that the architecture knows. @lacks: it needs the tensor and the file has
 * none. */
void survey_tensor(struct survey *s, const char *name, bool lacks);
