#include "scheduler/late.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "grammar/constraint.h"
#include "scheduler/constraints.h"
#include "scheduler/request.h"

/* A mask that a thread makes. While `away`, the thread owns state, bits and n; the scheduler owns
 * the rest. */
struct late {
    struct constrain_job job;
    /* NULL: the request was freed; the constraint is released when the mask is done */
    struct request *request;
    const struct sched_constraints *source;
    const struct constraint *constraint;
    /* copy of the request's state */
    struct constraint_state *state;
    /* number of the tenant in the front */
    uint32_t payer;
    uint32_t *bits, n_words;
    /* tokens of the request, and tokens that may follow, when the job began */
    uint32_t n_tokens, left;
    int64_t n;
    /* row: a step in flight has a row of the request, and its sample is discarded */
    bool away, row;
};

static struct late *late_free(struct late *l) {
    if (l) {
        constraint_state_free(l->state);
        free(l->bits);
        free(l);
    }
    return NULL;
}
DEFINE_FREEP(struct late, late)

static struct late *late_of(struct job *j) {
    return CONTAINER_OF(CONTAINER_OF(j, struct constrain_job, job), struct late, job);
}

int64_t late_compute(struct constraint_state *s, uint32_t left, uint32_t *bits) {
    int64_t n = constraint_mask_within(s, bits, left);

    return n == 0 ? constraint_mask(s, bits) : n;
}

static void late_run(struct job *j) {
    struct late *l = late_of(j);

    l->n = late_compute(l->state, l->left, l->bits);
}

/* A job that was dropped before it ran leaves n at -EAGAIN, and the mask is requested again. */
static void late_done(struct job *j) {
    struct late *l = late_of(j);

    assert(l->away);
    l->away = false;
    if (l->request)
        return;
    l->source->release(l->source->ctx, l->constraint, l->payer);
    late_free(l);
}

static struct late *late_new(struct request *r, uint32_t left) {
    CLEANUP(late_freep) struct late *l = calloc(1, sizeof(*l));

    if (!l)
        return NULL;
    *l = (struct late){
        .job = {.job = {.run = late_run, .done = late_done, .tenant = r->tenant, .weight = 1},
                .id = r->id},
        .request = r,
        .source = r->grammar.constraints,
        .constraint = r->grammar.constraint,
        .payer = r->payer,
        .n_words = constraint_n_words(r->grammar.constraint),
        .n_tokens = r->n_tokens,
        .left = left,
        .n = -EAGAIN,
        .away = true};
    l->bits = malloc(l->n_words * sizeof(*l->bits));
    if (!l->bits || constraint_state_new(&l->state, r->grammar.constraint) < 0 ||
        constraint_state_copy(l->state, r->grammar.matcher) < 0)
        return NULL;
    return STEAL(l);
}

int late_begin(struct request *r, uint32_t left) {
    assert(r->grammar.matcher && r->grammar.constraints->submit);
    if (r->grammar.late && r->grammar.late->away && r->grammar.late->n_tokens == r->n_tokens)
        return 0;
    assert(!late_waits(r));
    CLEANUP(late_freep) struct late *l = late_new(r, left);
    int e = l ? r->grammar.constraints->submit(r->grammar.constraints->ctx, &l->job) : -ENOMEM;

    if (e < 0)
        return e;
    late_free(r->grammar.late);
    r->grammar.late = STEAL(l);
    return 0;
}

bool late_waits(const struct request *r) {
    return r->grammar.late && (r->grammar.late->away || r->grammar.late->row);
}

void late_set_row(struct request *r, bool under_way) {
    assert(r->grammar.late && r->grammar.late->row != under_way);
    r->grammar.late->row = under_way;
}

bool late_has_mask(const struct request *r) {
    const struct late *l = r->grammar.late;

    return l && !l->away && l->n_tokens == r->n_tokens && l->n != -EAGAIN;
}

bool late_mask(const struct request *r, uint32_t n_tokens, uint32_t *bits, int64_t *n) {
    const struct late *l = r->grammar.late;

    if (!late_has_mask(r) || n_tokens != r->n_tokens)
        return false;
    memcpy(bits, l->bits, l->n_words * sizeof(*bits));
    *n = l->n;
    return true;
}

void late_release(struct request *r) {
    if (r->grammar.late && r->grammar.late->away) {
        assert(r->grammar.late->constraint == r->grammar.constraint);
        r->grammar.late->request = NULL;
        r->grammar.constraint = NULL;
    } else {
        late_free(r->grammar.late);
    }
    r->grammar.late = NULL;
}
