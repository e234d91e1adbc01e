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

/* Changes @text by all steps. @first: the text is the begin of an input. The result, *@out, is
 * @text itself or lies in @a or @b, whose contents are replaced. Takes linear time, multiplied by
 * the lengths of replacements. Returns 0, -ENOMEM, -EMSGSIZE, or -ECANCELED in an abandoned job. */
int steps_run(const struct steps *s, struct gguf_str text, bool first, struct buf *a, struct buf *b,
              struct gguf_str *out);
