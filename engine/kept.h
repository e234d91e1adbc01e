#pragma once

/*
 * kept - tracks for which positions each slot keeps hidden states (OP_KEEP). The batches alone
 * determine this, so the device is never asked.
 */

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/result.h"
#include "engine/backend.h"

/* Returns the number of values of a hidden state. */
static inline uint32_t hidden_width(const struct model_shape *s) {
    return (s->keeps_streams ? s->stream.n : 1) * s->n_embd;
}

/* A slot has ENGINE_KEPT hidden states; that of position p is at index p % ENGINE_KEPT. */
struct kept {
    /* 0: the model does not draft */
    uint32_t n_slots;
    /* [n_slots][ENGINE_KEPT]: 1 + position of the hidden state; 0: none */
    uint32_t *of;
};

/* Allocates the table. Returns 0 or -ENOMEM. */
static inline int kept_init(struct kept *k, uint32_t n_slots) {
    k->n_slots = n_slots;
    if (n_slots)
        k->of = calloc((size_t)n_slots * ENGINE_KEPT, sizeof(*k->of));
    else
        k->of = NULL;
    return enomem_unless(k->of || !n_slots);
}

/* Frees the table; accepts and leaves a zeroed one. */
static inline void kept_deinit(struct kept *k) {
    free(k->of);
    *k = (struct kept){0};
}

/* Returns the index of the hidden state of position @pos among those of all slots. */
static inline size_t kept_at(const struct engine_seq *s, uint32_t pos) {
    return (size_t)s->state_slot * ENGINE_KEPT + pos % ENGINE_KEPT;
}

/* Begins a step: drops the hidden states of the sequence that had the slot before. */
static inline void kept_begin(struct kept *k, const struct engine_seq *s) {
    assert(s->state_slot < k->n_slots);
    if (s->begins)
        memset(k->of + kept_at(s, 0), 0, ENGINE_KEPT * sizeof(*k->of));
}

/* Returns true if the state of position @pos is kept. */
static inline bool kept_has(const struct kept *k, const struct engine_seq *s, uint32_t pos) {
    return k->of[kept_at(s, pos)] == pos + 1;
}

/* Returns the first row of @s in this step whose hidden state is kept: one of the last
 * ENGINE_KEPT. */
static inline uint32_t kept_first(const struct engine_seq *s) {
    return s->n_rows - MIN(s->n_rows, ENGINE_KEPT);
}

/* Returns the position under which the hidden state of row @i of @s is kept. */
static inline uint32_t kept_pos(const struct engine_seq *s, uint32_t i) {
    return s->pos0 + s->n_ahead + i;
}

/* Ends the step: notes the kept positions. */
static inline void kept_end(struct kept *k, const struct engine_seq *s) {
    assert(s->state_slot < k->n_slots);
    for (uint32_t i = kept_first(s); i < s->n_rows; i++)
        k->of[kept_at(s, kept_pos(s, i))] = kept_pos(s, i) + 1;
}
