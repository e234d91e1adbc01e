/*
 * steps - the order in which a picture is computed, in pieces. A stage is a pass over independent
 * units, so that a piece may have any number of them, and no bit depends on the division.
 */

#include <assert.h>
#include <string.h>

#include "engine/vision/encoder_private.h"

enum { LEAST = 8, NO_MOST = 1 << 30 }; /* LEAST: rows of a tile of products */

static uint32_t patches(const struct image_encoder *e, const struct picture_layout *l) {
    return (l->width / e->p.patch) * (l->height / e->p.patch);
}

static uint32_t blocks(const struct image_encoder *e, const struct picture_layout *l) {
    return patches(e, l) / (e->p.merge * e->p.merge);
}

static uint32_t windows(const struct image_encoder *e, const struct picture_layout *l) {
    uint32_t side = e->p.patch * MAX(e->p.window, 1u);

    return ((l->width + side - 1) / side) * ((l->height + side - 1) / side);
}

/* The number of units of a stage. */
static uint32_t n_units(const struct image_encoder *e, const struct picture_layout *l,
                        enum vis_stage stage, uint32_t layer) {
    switch (stage) {
    case VIS_ATTEND:
        if (vis_full_attention(e, layer))
            return e->p.n_head * vis_head_blocks(patches(e, l) + vis_extra(e));
        return windows(e, l);
    case VIS_DEEP:
        if (!e->layer[layer].deep_norm.w)
            return 0;
        return blocks(e, l);
    case VIS_ARRANGE:
        return blocks(e, l);
    case VIS_PROJECT:
        return l->n_columns * l->n_lines;
    case VIS_EMBED:
        return patches(e, l);
    default:
        return patches(e, l) + vis_extra(e);
    }
}

/* Multiply-adds of a unit; functions of rows count as one of a product as wide. */
static uint64_t unit_work(const struct image_encoder *e, const struct picture_layout *l,
                          enum vis_stage stage, uint32_t layer) {
    uint64_t n = e->p.n_embd, area = (uint64_t)e->p.merge * e->p.merge;
    uint64_t all = patches(e, l) + vis_extra(e);
    uint64_t window = MIN((uint64_t)e->p.window * e->p.window, all);

    switch (stage) {
    case VIS_EMBED:
        return 3ull * e->p.patch * e->p.patch * n;
    case VIS_QKV:
        return 3 * n * n;
    case VIS_ATTEND:
        if (vis_full_attention(e, layer))
            return 2 * all * (n / e->p.n_head) * VIS_HEAD_ROWS;
        return 2 * window * window * n;
    case VIS_OUT:
        return n * n;
    case VIS_FFN:
        return (e->layer[layer].gate ? 3 : 2) * n * e->p.n_ff;
    case VIS_DEEP:
        return (area * n + e->p.n_out) * e->hidden;
    case VIS_ARRANGE:
        return area * n;
    default:
        break;
    }
    if (e->p.kind == PROJECTOR_HUNYUANVL)
        return (area * n + e->hidden_next) * e->hidden + (uint64_t)e->hidden_next * e->p.n_out;
    if (e->p.kind == PROJECTOR_GLM4V)
        return (area * n + e->p.n_out + 3ull * e->hidden) * e->p.n_out;
    uint64_t rows = e->merge ? n : area * n, more = e->merge ? area * n * n : 0;
    if (e->mm_in)
        return (rows + e->p.n_out) * e->hidden + more;
    if (e->p.kind == PROJECTOR_IDEFICS3)
        return rows * e->p.n_out;
    return (uint64_t)n * e->p.n_out + more;
}

/* Moves @c to the next stage. */
static void vis_advance(const struct image_encoder *e, struct vis_cursor *c) {
    c->at = 0;
    if (c->stage == VIS_DEEP)
        c->part += e->layer[c->layer].deep_norm.w != NULL;
    if (c->stage == VIS_DEEP && ++c->layer < e->p.n_layer)
        c->stage = VIS_QKV;
    else if (c->stage == VIS_EMBED && e->p.n_layer == 0)
        c->stage = VIS_ARRANGE;
    else
        c->stage++;
}

/* The layout of part @a, as that of a picture. */
static struct picture_layout layout_of(const struct image_encoder *e,
                                       const struct picture_part *a) {
    uint32_t align = e->p.patch * e->p.merge, n = a->width / align, m = a->height / align;

    return (struct picture_layout){a->width, a->height, n, m, n * m, n * m};
}

static uint64_t part_work(const struct image_encoder *e, const struct picture_layout *l) {
    uint64_t sum = 0;

    for (struct vis_cursor c = {0}; c.stage != VIS_STAGES; vis_advance(e, &c))
        sum += n_units(e, l, c.stage, c.layer) * unit_work(e, l, c.stage, c.layer);
    return sum;
}

uint64_t vis_work(const struct image_encoder *e, const struct picture_layout *l) {
    uint32_t n = projector_parts(&e->p, l);
    uint64_t sum = 0;

    for (uint32_t i = 0; i < n; i++) {
        const struct picture_part a = projector_part(&e->p, l, i);
        const struct picture_layout part = layout_of(e, &a);

        sum += part_work(e, &part);
    }
    return sum;
}

/* Begins part c->tile: its layout, its pixels and the rows of its marks. */
static void vis_begin_part(struct image_encoder *e, struct vis_cursor *c) {
    const struct picture_part a = projector_part(&e->p, &c->whole, c->tile);
    size_t n_out = e->p.n_out;

    c->stage = VIS_EMBED;
    c->layer = c->part = c->at = 0;
    c->l = layout_of(e, &a);
    c->pixels = c->rgb + a.top * c->pitch + (size_t)a.left * 3;
    c->out = c->rows + a.first * n_out;
    for (uint32_t i = 0; i < a.n_marks; i++, c->out += n_out) {
        if (e->marks)
            memcpy(c->out, e->marks + a.mark[i] * n_out, n_out * sizeof(*c->out));
        else
            memset(c->out, 0, n_out * sizeof(*c->out));
    }
    vis_place(e);
}

/* Returns how many units of the stage a piece of @room multiply-adds has. */
static uint32_t piece_units(const struct image_encoder *e, uint64_t one, uint32_t left,
                            uint64_t room) {
    const struct vis_cursor *c = &e->under_way;
    bool attends = c->stage == VIS_ATTEND;
    uint32_t least = LEAST;
    uint64_t n = MIN(room / MAX(one, 1ull), (uint64_t)(attends ? NO_MOST : VIS_CHUNK));

    if (attends)
        least = 1;
    n = MAX(n / least * least, (uint64_t)least);
    return (uint32_t)MIN(n, (uint64_t)left);
}

/* Computes units [at, at + n) of the stage under way; returns how many were done. */
static uint32_t run_units(struct image_encoder *e, uint32_t at, uint32_t n) {
    switch (e->under_way.stage) {
    case VIS_EMBED:
        vis_embed(e, at, n);
        return n;
    case VIS_QKV:
        vis_qkv(e, at, n);
        return n;
    case VIS_ATTEND:
        vis_attend(e, at, n);
        return n;
    case VIS_OUT:
        vis_out(e, at, n);
        return n;
    case VIS_FFN:
        vis_ffn(e, at, n);
        return n;
    case VIS_DEEP:
        vis_deep(e, at, n);
        return n;
    case VIS_ARRANGE:
        vis_arrange(e, at, n);
        return n;
    default:
        return vis_project(e, at, n);
    }
}

void vis_begin(struct image_encoder *e, const uint8_t *rgb, const struct picture_layout *l,
               float *out) {
    e->under_way = (struct vis_cursor){
        .rgb = rgb,
        .whole = *l,
        .rows = out,
        .n_parts = projector_parts(&e->p, l),
        .pitch = (size_t)l->width * 3,
        .left = vis_work(e, l),
    };
    vis_begin_part(e, &e->under_way);
}

int vis_step(struct image_encoder *e, uint64_t work, uint64_t *left) {
    struct vis_cursor *c = &e->under_way;
    uint64_t done = 0;

    assert(c->rgb && c->stage != VIS_STAGES);
    do {
        uint32_t n = n_units(e, &c->l, c->stage, c->layer);
        uint64_t one = unit_work(e, &c->l, c->stage, c->layer);

        if (c->at < n) {
            uint32_t rows =
                run_units(e, c->at, piece_units(e, one, n - c->at, work - MIN(done, work)));

            c->at += rows;
            done += rows * one;
        }
        if (c->at >= n)
            vis_advance(e, c);
        if (c->stage == VIS_STAGES && ++c->tile < c->n_parts)
            vis_begin_part(e, c);
    } while (c->stage != VIS_STAGES && (done < work || done == 0));
    assert(done <= c->left && (c->stage == VIS_STAGES) == (done == c->left));
    c->left -= done;
    *left = c->left;
    int r = e->ops->end(e->be);
    if (c->stage == VIS_STAGES || r < 0)
        *c = (struct vis_cursor){0};
    return r;
}
