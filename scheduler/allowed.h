#pragma once

/*
 * allowed - the tokens that a request may have, independently of its grammar: its allowed_token_ids
 * without its bad_words. A bad word of one token is always excluded; the last token of a longer one
 * is excluded while the output ends with its other tokens. Both fields have vLLM's meaning.
 */

#include <string.h>

#include "base/err.h"
#include "proto/messages.h"

struct allowed;

/* Returns the number of ids in @list, which lies unaligned in a message. */
static inline uint32_t ids_n(struct str list) {
    return list.len / (uint32_t)sizeof(int32_t);
}

/* Returns id @i of @list. */
static inline int32_t ids_at(struct str list, uint32_t i) {
    int32_t id;

    memcpy(&id, list.data + i * sizeof(id), sizeof(id));
    return id;
}

/* Checks that @list, which a client calls @field, is whole and that its ids are below @n_vocab.
 * Returns 0, or -EINVAL with @err. */
int ids_check(struct str list, uint32_t n_vocab, const char *field, struct err *err);

/* Checks the lists of @m as ids_check() does. Returns 0, or -EINVAL with @err. */
int allowed_check(const struct submit *m, uint32_t n_vocab, struct err *err);
/* Makes the mask of a submit that was checked; *out NULL allows all tokens. Returns 0 or
 * -ENOMEM. */
int allowed_new(struct allowed **out, const struct submit *m, uint32_t n_vocab);
struct allowed *allowed_free(struct allowed *a);
/* Returns whether the allowed tokens depend on the output; @a may be NULL. */
bool allowed_depends(const struct allowed *a);
/* Writes the mask after @output[0, n) to @bits, or with @joins intersects @bits with it. Returns
 * the number of allowed tokens. */
int64_t allowed_mask(const struct allowed *a, const int32_t *output, uint32_t n, bool joins,
                     uint32_t *bits);
