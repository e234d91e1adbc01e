/*
 * ranks_exchange - the exchange of columns among devices (ranks.c): meetings of their streams, and
 * kernels that read the memory of other devices.
 */

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "engine/cuda/ranks/ranks.h"

/* Records the event of @b on its stream. */
static int record_ready(const struct be *b) {
    int e = b->api->use(b->number);

    if (e)
        return e;
    return b->api->event_record(b->group.ready, b->stream);
}

/* Makes later work of @b wait for the events of ranks @of. */
static int wait_ready(const struct ranks *k, const struct be *b, uint32_t of) {
    int e = b->api->use(b->number);

    for (uint32_t j = 0; j < k->n && e == 0; j++)
        if (k->be[j] != b && of >> j & 1)
            e = b->api->event_wait(k->be[j]->group.ready, b->stream);
    return e;
}

int ranks_meet(struct ranks *k, const struct meeting *m, struct be **failed) {
    struct be *b = NULL;
    int e = 0;

    for (uint32_t i = k->n; i-- > 0 && e == 0;) {
        b = k->be[i];
        if (m->of >> i & 1)
            e = record_ready(b);
    }
    for (uint32_t i = k->n; i-- > 0 && e == 0;) {
        b = k->be[i];
        if (m->by >> i & 1)
            e = wait_ready(k, b, m->of);
    }
    if (failed)
        *failed = b;
    return e;
}

int ranks_meet_now(struct ranks *k, const struct meeting *m) {
    struct be *failed = k->be[0];
    int e = 0;

    if (!failed->fault.lost)
        e = ranks_meet(k, m, &failed);
    for (uint32_t i = 0; i < k->n; i++)
        k->be[i]->waits |= m->by >> i & 1;
    return cuda_check(failed, e, "cudaEventRecord, cudaStreamWaitEvent");
}

int ranks_meet_in_step(struct ranks *k, const struct meeting *m) {
    struct be *first = k->be[0];

    if (first->graphs.replaying)
        return cuda_check(first, 0, "");
    if (first->graphs.noting)
        graph_note(first, NOTE_MEETING, NULL, false, m, sizeof(*m));
    return ranks_meet_now(k, m);
}

struct columns ranks_columns(const struct be *b, enum gathered what) {
    bool latent = b->shape->mla.rank > 0;

    switch (what) {
    case GATHER_O:
        return (struct columns){b->act.o, b->act.q}; /* unused after attention, as is act.o */
    case GATHER_D:
        if (latent)
            return (struct columns){b->act.q, b->act.o};
        return (struct columns){b->recurrent.out, b->act.q};
    case GATHER_H:
        return (struct columns){b->act.gate, b->act.up};
    case GATHER_T:
        return (struct columns){b->act.own_t, b->act.o};
    case GATHER_E:
        return (struct columns){b->experts.gate, b->experts.up};
    case GATHER_LOGITS:
        return (struct columns){b->sampling.z, NULL};
    }
    abort();
}

/* Returns the columns of all ranks. Columns of value heads are divided in several pieces. */
struct shares ranks_shares(const struct ranks *k, enum gathered what, uint32_t n) {
    uint32_t n_pieces = what == GATHER_D ? rank_value_heads(k->be[0]).n : 1, period = n / n_pieces;
    struct shares all = {.n = n, .n_shares = k->n, .period = period};

    assert(n % n_pieces == 0);
    for (uint32_t j = 0; j < k->n; j++) {
        uint32_t first = rank_cut(period, j, k->n), n_own = rank_cut(period, j + 1, k->n) - first;

        all.share[j] = (struct share){ranks_columns(k->be[j], what).own, first, n_pieces * n_own};
    }
    return all;
}

int ranks_exchange(struct step *s) {
    return ranks_meet_in_step(s->be->group.ranks, &all_meet);
}

int ranks_pack(struct be *b, uint32_t n_rows, enum gathered what, const struct pack_args *a) {
    assert(a->x == ranks_columns(b, what).whole);
    const struct pack_shares_args shares = {*a, ranks_shares(b->group.ranks, what, a->n)};
    assert(a->kind == PACK_PLAIN && !a->x_stride);
    return CUDA_LAUNCH(b, pack_shares, n_rows, 1, PACK_THREADS, &shares);
}

int ranks_residual(struct be *b, uint32_t n_rows, const struct residual_args *a) {
    if (a->t != ranks_columns(b, GATHER_T).whole)
        return CUDA_LAUNCH(b, residual, n_rows, 1, CUDA_THREADS, a);
    const struct residual_shares_args shares = {*a, ranks_shares(b->group.ranks, GATHER_T, a->n)};
    assert(!a->left.sums);
    return CUDA_LAUNCH(b, residual_shares, n_rows, 1, CUDA_THREADS, &shares);
}
