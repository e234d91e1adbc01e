/*
 * pictures - rows of pictures in a step. An image encoder has computed their values, and the upload
 * copies them to the device, where embed uses them in place of a token's embedding, and deep adds
 * further parts after the first layers. Rotary positions have four axes (M-RoPE), from
 * picture_rows(). If rows of a picture attend to each other in both directions, attention takes the
 * last key of a row from there, too. Steps with rows of pictures are pieces of prompts, and are
 * launched kernel by kernel.
 */

#include <string.h>

#include "base/try.h"
#include "engine/cuda/cuda.h"

_Static_assert(ROPE_PLACES == ROPE_AXES, "");

bool pictures_fill(struct step *s, struct batch_head *h, uint32_t *last) {
    struct be *b = s->be;
    const struct engine_batch *batch = s->batch;
    size_t n = batch->n_rows * sizeof(uint32_t), width = b->shape->n_picture * sizeof(float);
    uint32_t *at[ROPE_AXES], *place, n_values = 0;
    const void *d;

    s->pictures = false;
    for (int k = 0; k < ROPE_AXES; k++)
        h->at[k] = h->pos;
    if (!b->pictures.row)
        return true;
    for (int k = 0; k < ROPE_AXES; k++) {
        at[k] = staging_alloc(&s->rows, n, &d);
        h->at[k] = d;
    }
    place = staging_alloc(&s->rows, n, &d);
    if (!place)
        return false;
    h->picture_row = d;
    for (uint32_t i = 0; i < batch->n_seqs; i++)
        picture_rows(&batch->seq[i], b->shape->rope[0].places,
                     b->pictures.row + batch->seq[i].row0);
    for (uint32_t r = 0; r < batch->n_rows; r++) {
        const struct picture_row *row = &b->pictures.row[r];

        for (int k = 0; k < ROPE_AXES; k++)
            at[k][r] = row->at[k];
        last[r] = MAX(last[r], row->end - 1);
        if (row->values)
            place[r] = n_values++;
        else
            place[r] = NO_PICTURE;
    }
    s->pictures = n_values > 0;
    float *values = staging_alloc(&s->rows, n_values * width, &d);
    h->picture = d;
    for (uint32_t r = 0; r < batch->n_rows && values; r++)
        if (b->pictures.row[r].values)
            memcpy(values + (size_t)place[r] * b->shape->n_picture, b->pictures.row[r].values,
                   width);
    return values != NULL;
}

/* Steps without rows of pictures, which include all graphs, launch nothing. */
int step_deep(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    const struct deep_args a = {.batch = b->head,
                                .x = b->act.x,
                                .n = b->shape->n_embd,
                                .first = op->part * b->shape->n_embd,
                                .picture_width = b->shape->n_picture};

    if (!s->pictures)
        return 0;
    TRY(step_complete(s, op));
    return CUDA_LAUNCH(b, deep, s->grid.rows, 1, CUDA_THREADS, &a);
}
