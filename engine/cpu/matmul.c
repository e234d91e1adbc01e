#include "engine/cpu/cpu.h"

#include <assert.h>
#include <stdatomic.h>
#include <string.h>

/*
 * Products are cut into items: a stretch of panels times a chunk of rows. Few rows: a stretch is about
 * STRETCH bytes of weights, which a thread reads as one stream, all rows sharing the pass. Many rows: a
 * panel a time, its quants unpacked a piece at a time into the first-level cache, against the tiles of a
 * chunk whose activations stay in the second. Which thread takes what, and the cuts, do not touch
 * the order in which a result is summed (gemm_*.c).
 */

enum { STRETCH = 64 * 1024, ACTS_CACHED = 512 * 1024, TILE = TILE_MAX };

struct run {
    const struct matmul *mm;
    uint32_t chunk_rows, n_chunks, stretch, n_panels;
    _Atomic uint32_t next;
};

/* acc[row][lane] of panel @panel of @m for rows [row0, row0 + n_rows). */
static void multiply(const struct matmul *mm, const struct mat *m, uint32_t panel, uint32_t row0,
                     uint32_t n_rows, float *acc, uint8_t *quants) {
    const struct panel_info *info = &panel_infos[m->format];
    const struct gemm *g = gemm_of(mm->kernels, m->format);
    const uint8_t *p = mat_panel(m, panel);
    size_t tile_bytes = acts_bytes(info->acts, m->n_in, TILE);
    const uint8_t *acts = mm->acts[info->acts] + row0 / TILE * tile_bytes;
    uint32_t n_tiles = (n_rows + TILE - 1) / TILE, done = 0;

    memset(acc, 0, (size_t)n_tiles * TILE * LANES * sizeof(float));
    if (g->unpack && n_rows >= 2 * TILE) {
        uint32_t step = MATMUL_UNPACK / (LANES * info->block);

        done = n_rows / TILE;
        for (uint32_t b = 0; b < m->n_blocks; b += step) {
            uint32_t end = MIN(b + step, m->n_blocks);

            g->unpack(m, p, b, end, quants);
            for (uint32_t t = 0; t < done; t++)
                g->run_unpacked(m, p, quants, acts + t * tile_bytes, b, end,
                                acc + t * TILE * LANES);
        }
    }
    for (uint32_t t = done; t < n_tiles; t++)
        g->run(m, p, acts + t * tile_bytes, tile_width(MIN(n_rows - t * TILE, TILE)), 0,
               m->n_blocks, acc + t * TILE * LANES);
}

static void add_bias(const struct mat *m, uint32_t at, uint32_t n, uint32_t n_rows, float *acc) {
    for (uint32_t r = 0; r < n_rows && m->bias; r++)
        for (uint32_t i = 0; i < n; i++)
            acc[r * LANES + i] += m->bias[at + i];
}

static void write_out(const struct matmul *mm, uint32_t which, uint32_t panel, uint32_t row0,
                      uint32_t n_rows, struct matmul_scratch *s) {
    const struct mat *m = mm->m[which];
    uint32_t at = panel * LANES, n = MIN(LANES, m->n_out - at);
    float *acc = s->acc[0];

    add_bias(m, at, n, n_rows, acc);
    if (mm->mode == MATMUL_SILU) {
        add_bias(mm->m[1], at, n, n_rows, s->acc[1]);
        mm->kernels->silu_mul(acc, s->acc[1], acc, n_rows * LANES);
    }
    for (uint32_t r = 0; r < n_rows; r++) {
        float *out = mm->out[which] + (row0 + r) * mm->out_stride[which] + at;

        if (mm->mode == MATMUL_ADD)
            for (uint32_t i = 0; i < n; i++)
                out[i] += acc[r * LANES + i];
        else
            memcpy(out, acc + r * LANES, n * sizeof(float));
    }
}

static void do_panel(const struct matmul *mm, uint32_t panel, uint32_t row0, uint32_t n_rows,
                     struct matmul_scratch *s) {
    uint32_t which = 0;

    if (mm->mode == MATMUL_SILU)
        multiply(mm, mm->m[1], panel, row0, n_rows, s->acc[1], s->quants);
    else
        while (panel >= mm->m[which]->n_panels)
            panel -= mm->m[which++]->n_panels;
    multiply(mm, mm->m[which], panel, row0, n_rows, s->acc[0], s->quants);
    write_out(mm, which, panel, row0, n_rows, s);
}

static void do_items(void *ctx, uint32_t thread) {
    struct run *r = ctx;
    uint32_t per_chunk = (r->n_panels + r->stretch - 1) / r->stretch;

    for (;;) {
        uint32_t item = atomic_fetch_add(&r->next, 1);

        if (item >= per_chunk * r->n_chunks)
            return;
        uint32_t row0 = item / per_chunk * r->chunk_rows;
        uint32_t first = item % per_chunk * r->stretch;
        for (uint32_t p = first; p < MIN(first + r->stretch, r->n_panels); p++)
            do_panel(r->mm, p, row0, MIN(r->chunk_rows, r->mm->n_rows - row0),
                     &r->mm->scratch[thread]);
    }
}

/* Rows whose activations stay in the second-level cache. */
static uint32_t chunk_rows(const struct mat *m) {
    size_t row = acts_bytes(panel_infos[m->format].acts, m->n_in, 1);
    size_t rows = ACTS_CACHED / row / TILE * TILE;

    return (uint32_t)MIN(MAX(rows, 4 * TILE), MATMUL_ROWS);
}

void matmul_run(struct pool *p, struct matmul *mm) {
    struct run r = {.mm = mm, .chunk_rows = chunk_rows(mm->m[0])};
    size_t panel_bytes = mm->m[0]->panel_bytes * (mm->mode == MATMUL_SILU ? 2 : 1);

    assert(mm->mode != MATMUL_SILU || mm->m[0]->n_panels == mm->m[1]->n_panels);
    for (uint32_t i = 0; i < (mm->mode == MATMUL_SILU ? 1 : mm->n_mats); i++)
        r.n_panels += mm->m[i]->n_panels;
    r.n_chunks = (mm->n_rows + r.chunk_rows - 1) / r.chunk_rows;
    r.stretch = mm->n_rows > 2 * TILE ? 1 : (uint32_t)MAX(STRETCH / panel_bytes, 1);
    pool_run(p, do_items, &r);
}
