#pragma once

/*
 * steps - changes of a text before it is cut, as a file from Hugging Face lists them: normal forms,
 * lower case, replacing, marks for spaces. Steps are loaded from strings of a key: the name of a
 * step, then its arguments.
 */

#include "base/buf.h"
#include "base/err.h"
#include "base/gguf.h"

struct charsmap;

#define STEPS_MAX 64

struct text_step {
    /* row of the table in steps.c */
    uint8_t op;
    struct gguf_str arg[2];
};

struct steps {
    uint32_t n;
    /* steps of the normalizer; the others belong to the pre-tokenizer. n if none is marked */
    uint32_t n_normalize;
    bool is_marked;
    /* [n] */
    struct text_step *step;
    /* memory of the arguments */
    char *text;
    /* map of the step "precompiled"; NULL: none */
    const struct charsmap *map;
};

/* Reads the strings of array @key into the zeroed @s. Returns 0, -ENOMEM or -EINVAL with @err;
 * steps_deinit() follows in every case. */
int steps_load(struct steps *s, const struct gguf *g, const char *key, struct err *err);
void steps_deinit(struct steps *s);

enum steps_part { STEPS_ALL, STEPS_NORMALIZE, STEPS_REST };

/* Place of a text in the input, as bits. */
enum steps_place {
    /* at the begin of an input */
    STEPS_FIRST = 1,
    /* behind and before parts of one text */
    STEPS_BEHIND = 2,
    STEPS_BEFORE = 4,
};

/* Changes @text by the steps of @part. @place: enum steps_place. The result, *@out, is
 * @text itself or lies in @a or @b, whose contents are replaced. Takes linear time, multiplied by
 * the lengths of replacements. Returns 0, -ENOMEM, -EMSGSIZE, or -ECANCELED in an abandoned job. */
int steps_run(const struct steps *s, enum steps_part part, struct gguf_str text, unsigned place,
              struct buf *a, struct buf *b, struct gguf_str *out);
