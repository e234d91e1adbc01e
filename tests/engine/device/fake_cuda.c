/*
 * A weft-cuda.so without a GPU: the reference backend with the interface of a device. It computes
 * at launch and at seal, takes fed tokens from its own samples, and returns the results of a step
 * when they are waited for, possibly after the next step was computed. FAKE_CUDA in the environment
 * selects a fault: "abi", "build", "probe", "open", "begin", "sample" or "end" (the last three in
 * step 3).
 */

#include <errno.h>
#include <string.h>

#include "engine/backend.h"

struct be {
    struct be *real;
    uint32_t max_rows, max_wants;
    /* of step s, at [s % 2] */
    struct step *step[2];
    /* the step that the reference has begun and not ended, or NULL */
    struct step *open;
    /* of the last step */
    int32_t *sampled;
};

struct step {
    struct be *be;
    struct step *real;
    uint64_t number;
    struct engine_batch batch;
    int32_t *token;
    struct engine_out *out;
    uint32_t n_outs;
};

extern struct be_ops weft_backend_cuda; /* BACKEND_CUDA_SYMBOL */

static bool broken(const char *what) {
    const char *s = getenv("FAKE_CUDA");

    return s && strcmp(s, what) == 0;
}

static int probe(const struct engine_opts *o, struct err *err) {
    return broken("probe") ? err_set(err, 0, NULL, "the fake has no device") : 0;
}

static struct be *close_be(struct be *b) {
    if (!b)
        return NULL;
    for (int i = 0; i < 2; i++) {
        free(b->step[i]->token);
        free(b->step[i]->out);
        free(b->step[i]);
    }
    backend_reference.close(b->real);
    free(b->sampled);
    free(b);
    return NULL;
}

static int open_be(struct be **out, const struct be_opts *o, struct err *err) {
    struct be *b = calloc(1, sizeof(*b));

    if (broken("open")) {
        free(b);
        return err_set(err, 0, NULL, "the fake does not open");
    }
    b->max_wants = o->engine->max_wants;
    b->sampled = calloc(o->engine->max_wants, sizeof(*b->sampled));
    for (int i = 0; i < 2; i++) {
        b->step[i] = calloc(1, sizeof(*b->step[i]));
        b->step[i]->be = b;
        b->step[i]->token = calloc(o->engine->max_rows, sizeof(int32_t));
        b->step[i]->out = calloc(o->engine->max_wants, sizeof(struct engine_out));
    }
    *out = b;
    return backend_reference.open(&b->real, o, err);
}

static const char *isa(const struct be *b) {
    return "fake";
}

static uint32_t n_threads(const struct be *b) {
    return 0;
}

/* A step without wants is not sampled: the reference ends it before the next one. */
static void end_real(struct be *b, struct engine_result *out) {
    if (b->open)
        backend_reference.end(b->open->real, out);
    b->open = NULL;
}

static int begin(struct be *b, const struct engine_batch *batch, struct step **out) {
    struct step *s = b->step[batch->step % 2];
    struct engine_result unwanted;

    if (broken("begin") && batch->step == 3)
        return -EIO;
    end_real(b, &unwanted);
    s->number = batch->step;
    s->batch = *batch;
    if (batch->n_rows > 0)
        memcpy(s->token, batch->token, batch->n_rows * sizeof(*s->token));
    for (uint32_t i = 0; i < batch->n_seqs; i++)
        if (batch->seq[i].feed >= 0)
            s->token[batch->seq[i].row0] = b->sampled[batch->seq[i].feed];
    s->batch.token = s->token;
    s->n_outs = 0;
    *out = s;
    b->open = s;
    return backend_reference.begin(b->real, &s->batch, &s->real);
}

/* Everything is computed here; later calls only return the results. */
static int sample(struct step *s) {
    struct engine_result r = {0};

    if (broken("sample") && s->number == 3)
        return -EIO;
    backend_reference.sample(s->real);
    end_real(s->be, &r);
    s->n_outs = r.n_outs;
    for (uint32_t i = 0; i < r.n_outs; i++) {
        s->out[i] = r.out[i];
        s->be->sampled[i] = r.out[i].token;
    }
    return 0;
}

static int end(struct step *s, struct engine_result *out) {
    if (broken("end") && s->number == 3)
        return -EIO;
    *out = (struct engine_result){s->number, s->n_outs, s->out};
    return 0;
}

static int run_real(struct step *s, const struct model_op *op) {
    return backend_reference.op[op->kind]->run(s->real, op);
}

static int mask(struct step *s, uint32_t want, const uint32_t *bits) {
    return backend_reference.mask(s->real, want, bits);
}

static int copy(struct be *b, const struct engine_copy *c) {
    return backend_reference.copy(b->real, c);
}

static const struct op_code real = {.run = run_real};
static const struct op_code *const fake_ops[OP_KINDS] = {
    [OP_EMBED] = &real, [OP_QKV] = &real,     [OP_ATTEND] = &real,
    [OP_PROJ] = &real,  [OP_GATE_UP] = &real, [OP_LOGITS] = &real,
};

struct be_ops weft_backend_cuda = {
    .name = "cuda",
    .depth = 2,
    .device = true,
    .probe = probe,
    .open = open_be,
    .close = close_be,
    .isa = isa,
    .n_threads = n_threads,
    .begin = begin,
    .op = fake_ops,
    .mask = mask,
    .sample = sample,
    .end = end,
    .copy = copy,
};

__attribute__((constructor)) static void set_up(void) {
    weft_backend_cuda.abi = BACKEND_ABI + broken("abi");
    backend_build_id(weft_backend_cuda.build_id);
    weft_backend_cuda.build_id[0] ^= broken("build");
}
