/*
 * hidden - vectors of rows before the logits (embeddings). Such wants are separate from those of
 * the output matrix, since a prompt whose mean is wanted has one for each row. The launches are not
 * part of a step's graph.
 */

#include <assert.h>
#include <errno.h>

#include "base/try.h"
#include "engine/cuda/cuda.h"

void hidden_sort(struct step *s) {
    const struct engine_batch *b = s->batch;

    s->n_scored = s->n_hidden = 0;
    for (uint32_t i = 0; i < b->n_wants; i++) {
        bool hidden = b->want[i].what == WANT_HIDDEN;

        if (!hidden)
            s->scored[s->n_scored] = i;
        if (hidden)
            s->place[i] = s->n_hidden++;
        else
            s->place[i] = s->n_scored++;
    }
    assert(s->n_scored + s->n_hidden == b->n_wants);
}

/* Computes the norm of the wanted rows in single precision and copies it to the host. If the pass
 * also drafts, x has changed since. KEEP has then stored the vectors: as the hidden states, or, if
 * the hidden states are residual streams, in be.draft.x. */
int hidden_launch(struct step *s) {
    struct be *b = s->be;
    const struct engine_batch *batch = s->batch;
    size_t n = b->shape->n_embd;
    const void *device;

    if (b->fault.lost || s->n_hidden == 0)
        return b->fault.lost ? -EIO : 0;
    uint32_t *row = staging_alloc(&s->wants, s->n_hidden * sizeof(*row), &device);
    assert(row && s->logits); /* the area is empty and large enough for all wants */
    for (uint32_t i = 0; i < batch->n_wants; i++)
        if (batch->want[i].what == WANT_HIDDEN) {
            assert(s->place[i] < s->n_hidden && batch->want[i].row < batch->n_rows);
            row[s->place[i]] = batch->want[i].row;
        }
    TRY(staging_send(b, &s->wants, 0));
    const float *kept = b->shape->keeps_streams ? b->draft.x : b->draft.hidden;
    const struct keep_args a = {
        .x = s->logits->links.kept ? kept : b->act.x,
        .weight = step_weights(b, s->logits)->norm,
        .bias = step_weights(b, s->logits)->norm_bias,
        .centred = b->shape->layer_norm,
        .row = device,
        .hidden = b->sampling.hidden,
        .n = b->shape->n_embd,
        .eps = b->shape->rms_eps,
    };
    TRY(CUDA_LAUNCH(b, keep, s->n_hidden, 1, PACK_THREADS, &a));
    return cuda_copy(b, s->hidden_host, b->sampling.hidden, s->n_hidden * n * sizeof(float),
                     CUDA_TO_HOST);
}
