#pragma once

/*
 * allowed - which tokens a request may have at all, whatever its grammar: its allowed_token_ids
 * without its bad_words. A word of one token never comes; of a longer one the last token does not
 * come where the output ends with the others (vLLM's meaning of both).
 */

#include <string.h>
#include "base/err.h"
#include "proto/messages.h"

struct allowed;

/* Of a list of token ids as it lies in a message, where nothing is aligned: how many there are. */
static inline uint32_t ids_n(struct str list) {
    return list.len / (uint32_t)sizeof(int32_t);
}

/* And one of them. */
static inline int32_t ids_at(struct str list, uint32_t i) {
    int32_t id;

    memcpy(&id, list.data + i * sizeof(id), sizeof(id));
    return id;
}

/* Whether @list, which a client calls @field, is whole and its ids below @n_vocab: 0, or -EINVAL
 * with @err. */
int ids_check(struct str list, uint32_t n_vocab, const char *field, struct err *err);

/* Whether the lists of @m are whole and their ids below @n_vocab: 0, or -EINVAL with @err. */
int allowed_check(const struct submit *m, uint32_t n_vocab, struct err *err);
/* Of a submit that was checked. *out NULL: all tokens. 0 or -ENOMEM. */
int allowed_new(struct allowed **out, const struct submit *m, uint32_t n_vocab);
struct allowed *allowed_free(struct allowed *a);
/* Whether what is allowed depends on the output; @a may be NULL. */
bool allowed_depends(const struct allowed *a);
/* Puts the mask behind output [0, @n) into @bits; @joins: takes it out of the one that is there.
 * How many tokens are left. */
int64_t allowed_mask(const struct allowed *a, const int32_t *output, uint32_t n, bool joins,
                     uint32_t *bits);
