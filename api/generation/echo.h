#pragma once

/* echo - a prompt as part of its answer: the text of its tokens, and where each of them ends. */

#include "base/buf.h"
#include "text/tokenizer.h"

struct echo {
    struct buf text;
    uint32_t *end; /* text.len after each token */
    uint32_t n;
};

/* Of tokens @id. @given: they were made of a text, so that what the vocabulary puts before it is
 * not echoed. NULL: no memory. */
struct echo *echo_new(const struct tokenizer *t, const int32_t *id, uint32_t n, bool given);
struct echo *echo_free(struct echo *e);
