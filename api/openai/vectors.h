#pragma once

/* vectors - requests whose inputs each give a vector or a score: embeddings, rerank. The dialect's
 * form reads the body and writes the answer. */

#include "api/generation/endpoint.h"
#include "api/generation/prompt_job.h"
#include "api/limits/admit.h"

#define VECTORS_LANES 16u /* at most, and a quarter of what may run */
#define VECTORS_ANSWER_MAX API_SEND_MAX
#define VECTORS_INLINE 64u /* inputs of an answer that is put together on the loop: some 3 MB */

struct gen;
struct http;
struct vectors;

/* endpoint.form */
struct vectors_form {
    /* Takes the result of input @input from @g->vector, and stores what the answer needs as text or
     * score of that input. Returns 0, -ENOMEM, or -EDOM: the result is not valid. */
    int (*finish_input)(struct vectors *v, uint32_t input, struct gen *g);
    /* Writes the answer when all results are there; runs on the pool if there are many. Returns 0,
     * -errno of buf_add(), or -ECANCELED in an abandoned job. */
    int (*answer)(struct vectors *v, struct buf *b);
};

/* A slot for one of a request's inputs at the worker. */
struct vectors_lane {
    struct waiter waiter;
    struct vectors *of;
    struct gen *gen;
    uint32_t input;
};

/* A request. Invariant: n_done <= n_next <= n_inputs; n_next is the next input that a lane
 * takes. */
struct vectors {
    /* NULL: the client is gone, or was answered */
    struct exchange *exchange;
    const struct vectors_form *form;
    struct prompt_job job;
    struct tenant *tenant;
    struct vectors_lane lane[VECTORS_LANES];
    /* [n_inputs] text of the answer; `floats`: the values that it is made of */
    struct buf *text;
    /* [n_inputs] */
    double *score;
    /* bytes of tokens, of a body that is kept, of results */
    struct quota_charge held;
    uint32_t n_inputs, n_next, n_done;
    uint64_t n_tokens;
    /* the exchange's */
    char id[64];
    int64_t started_ns;
    /* puts the answer together */
    struct job task;
    /* by that */
    struct buf answer;
    /* 0 or -errno of writing the answer */
    int written;
    /* the pool has it */
    bool writing;
    bool floats;
};

/* Takes the vector of @g: cut to the wanted dimensions and, by default, normalised to length 1;
 * with SUBMIT_POOL_NONE the vectors of all tokens, unchanged. Returns -EDOM if a number is not
 * finite. */
int vectors_finish(const struct vectors *v, struct gen *g);

/* route.serve: answers @x, whose body the route's endpoint translates. */
void vectors_serve(struct exchange *x, struct http *h);
