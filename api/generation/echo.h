#pragma once

/* echo - a prompt as part of its answer: the text of its tokens, and the end of each token in the
 * text. */

#include "base/buf.h"
#include "text/tokenizer.h"

struct echo {
    struct buf text;
    /* text.len after each token */
    uint32_t *end;
    uint32_t n;
    /* characters of the text */
    uint64_t n_chars;
    /* choices of the same prompt share it; the loop's */
    uint32_t n_users;
};

/* Returns the number of characters of @text, as an answer has it, that begin in [@from, @to). */
uint64_t echo_chars(const char *text, size_t from, size_t to);
/* Makes the echo of tokens @id, with one user. @given: they were made from a text, so tokens that
 * the vocabulary puts before it are not echoed; one that the text itself has is. Runs on any
 * thread. Returns 0, -ENOMEM, or -ECANCELED (job_pause()). */
int echo_new(struct echo **out, const struct tokenizer *t, const int32_t *id, uint32_t n,
             bool given);
struct echo *echo_use(struct echo *e);  /* one more user; accepts NULL */
struct echo *echo_free(struct echo *e); /* one less; accepts NULL */
