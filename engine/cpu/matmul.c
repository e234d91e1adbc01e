/*
 * matmul - cuts products of matrices into items for the threads.
 *
 * A product is out[row][i] = sum over k of w[i][k] x[row][k]: the weights of a panel (16 output
 * rows, panel.c) times the quantised activations of some rows. Each sum is computed by one thread
 * in a fixed order (gemm_*.c), so neither the cuts nor the thread that takes an item can change a
 * bit. That leaves two questions of speed, and they have different answers for few and for many
 * rows.
 *
 * Few rows (decode, at most two tiles): nearly all the time is spent reading weights from
 * memory. An item is a stretch of panels of about STRETCH bytes for all rows. Memory is
 * fastest when each thread reads one long stream that the hardware prefetcher can follow. If
 * stretches were handed out one by one, neighbouring stretches would go to different threads, and
 * two threads would have hardly more bandwidth than one. So every thread owns a range of
 * consecutive items:
 *
 *     items     0 1 2 3 4 5 | 6 7 8 9 10 11 | 12 ..
 *     owner     thread 0    | thread 1      | thread 2
 *
 * and takes them from the front. A thread whose range is empty steals the back half of the largest
 * range left. A slow thread, or one that joins late, thus delays the others by one item at most. A
 * range is one 64-bit word (from, to), so taking and stealing are single compare-and-swaps.
 *
 * Many rows (a prompt): the same weights serve hundreds of rows, and arithmetic is the bound. An
 * item is a few panels times a chunk of rows. A panel's quants are unpacked to bytes a piece at a
 * time into the first-level cache, and each piece is multiplied with all tiles of the chunk before
 * the next one is unpacked (matmul_pieces()). The panels of an item take turns, so that the same
 * piece of activations serves all of them, and only this piece has to be in the second-level cache:
 * rows can be as wide as they like, and the weights are read from memory once for 128 of them.
 * Items are handed out one by one from a counter, so that the threads work on the same chunk and on
 * neighbouring panels.
 *
 *     for each chunk of rows
 *         for each few panels                    an item
 *             for each piece of the panels       second-level cache: activations of the piece
 *                 for each panel                 first-level cache: unpacked weights
 *                     for each tile of 8 rows    registers: sums
 *
 * A product with few panels for each thread has items of one panel, and chunks whose activations
 * stay in the second-level cache as a whole (cached_rows()). So has a format whose kernel does not
 * unpack.
 *
 * Independent products (q, k and v; the experts of a mixture) run in one round, because each round
 * ends with a barrier. Their items are numbered consecutively, and find_product() returns the
 * product of an item. The gate and the up matrix of an FFN are multiplied by the same item, which
 * applies the activation function while both sums are in the first-level cache (MATMUL_GLU).
 */

#include <assert.h>
#include <stdatomic.h>
#include <string.h>

#include "engine/cpu/cpu.h"

/* STRETCH: bytes of panels that an item of few rows reads. ACTS_CACHED: bytes of activations of an
 * item with a single panel. PIECE_ROWS: rows of an item with several, at least; the activations of
 * a piece are 0.2 MiB then. TILE: rows of a tile. CHUNK: chunks are multiples of it. ITEMS: of many
 * rows for each thread, so that threads end at about the same time. */
enum {
    STRETCH = 64 * 1024,
    ACTS_CACHED = 512 * 1024,
    PIECE_ROWS = 128,
    TILE = TILE_MAX,
    CHUNK = 2 * TILE,
    ITEMS = 8,
};

/* Products that run together. Invariant: the items of product i are [mm[i].first_item, mm[i +
 * 1].first_item), those of the last product end at n_items. */
struct run {
    const struct matmul *mm;
    uint32_t n, n_threads, n_items;
    /* threads own ranges of items and steal; else they take the next one */
    bool steals;
    /* without stealing: the first item that is not taken */
    _Atomic uint32_t next;
};

/* Returns how many of the tiles of @n_rows rows, the first ones, are multiplied by unpacked
 * weights. */
static uint32_t matmul_wide_tiles(const struct gemm_wide *wide, uint32_t n_rows) {
    if (!wide->unpack || n_rows < 2 * TILE)
        return 0;
    return n_rows / TILE / wide->min_tiles * wide->min_tiles;
}

/* Adds the products of blocks [from, to) of panel @p with @n_tiles tiles to @acc. @next: bytes from
 * these blocks to those that follow. */
static void matmul_piece(const struct gemm_wide *wide, const struct mat *m, const uint8_t *p,
                         ptrdiff_t next, const uint8_t *acts, uint32_t n_tiles, uint32_t from,
                         uint32_t to, float *acc, uint8_t *quants) {
    const uint8_t *words = p + (size_t)from * panel_infos[m->format].unit_bytes;

    if (quants) {
        wide->unpack(p, next, from, to, quants);
        words = quants;
    }
    wide->run(m, p, words, acts, n_tiles, from, to, acc);
}

/* Multiplies @n panels by @n_tiles tiles, piece by piece: the activations of a piece are in the
 * second-level cache for all panels but the first. */
static void matmul_pieces(const struct gemm_wide *wide, const struct mat *m, uint32_t first,
                          uint32_t n, const uint8_t *acts, uint32_t n_tiles, float *acc,
                          uint8_t *quants) {
    const struct panel_info *info = &panel_infos[m->format];
    uint32_t step = MATMUL_UNPACK / (wide->n_planes * LANES * info->block);
    ptrdiff_t panel_bytes = (ptrdiff_t)m->panel_bytes;
    ptrdiff_t back = step / info->unit * info->unit_bytes - (n - 1) * panel_bytes;

    assert(step % 2 == 0 && step % info->unit == 0 && (quants || m->format == PANEL_F32));
    for (uint32_t b = 0; b < m->n_blocks; b += step)
        for (uint32_t i = 0; i < n; i++) {
            ptrdiff_t next = i + 1 < n ? panel_bytes : back;

            matmul_piece(wide, m, mat_panel(m, first + i), next, acts, n_tiles, b,
                         MIN(b + step, m->n_blocks), acc + i * MATMUL_SUMS, quants);
        }
}

void matmul_panels(const struct cpu_kernels *k, const struct mat *m, uint32_t first, uint32_t n,
                   const uint8_t *acts, uint32_t n_rows, float *acc, uint8_t *quants) {
    const struct gemm *g = gemm_of(k, m->format);
    const struct gemm_wide *wide = gemm_wide_of(k, m->format);
    size_t tile_bytes = acts_bytes(panel_infos[m->format].acts, m->n_in, TILE);
    uint32_t n_tiles = (n_rows + TILE - 1) / TILE, done = matmul_wide_tiles(wide, n_rows);

    for (uint32_t i = 0; i < n; i++)
        memset(acc + i * MATMUL_SUMS, 0, (size_t)n_tiles * TILE * LANES * sizeof(float));
    if (done > 0)
        matmul_pieces(wide, m, first, n, acts, done, acc, quants);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t t = done; t < n_tiles; t++)
            g->run(m, mat_panel(m, first + i), acts + t * tile_bytes,
                   tile_width(MIN(n_rows - t * TILE, TILE)), 0, m->n_blocks,
                   acc + i * MATMUL_SUMS + t * TILE * LANES);
}

/* Computes acc[row][lane] of panels [first, first + n) of @m for rows [row0, row0 + n_rows) of a
 * product. */
static void matmul_multiply(const struct matmul *mm, const struct mat *m, uint32_t first,
                            uint32_t n, uint32_t row0, uint32_t n_rows, float *acc,
                            uint8_t *quants) {
    enum acts_kind kind = panel_infos[m->format].acts;
    const uint8_t *acts = mm->acts[kind] + acts_bytes(kind, m->n_in, row0);

    matmul_panels(mm->kernels, m, first, n, acts, n_rows, acc, quants);
}

/* Multiplies a panel's sums by the scale of the matrix, and adds the bias of its output rows [at,
 * at + n). */
static void scale_and_add_bias(const struct mat *m, uint32_t at, uint32_t n, uint32_t n_rows,
                               float *acc) {
    for (uint32_t i = 0; i < n_rows * LANES && m->scale; i++)
        acc[i] *= *m->scale;
    for (uint32_t r = 0; r < n_rows && m->bias; r++)
        for (uint32_t i = 0; i < n; i++)
            acc[r * LANES + i] += m->bias[at + i];
}

/* Writes the sums @acc of a panel to the output of matrix @which as mm->mode says, with scale and
 * bias; @up: the sums of the up matrix. Lanes from n_out on are dropped. */
static void write_out(const struct matmul *mm, uint32_t which, uint32_t panel, uint32_t row0,
                      uint32_t n_rows, float *acc, float *up) {
    const struct mat *m = mm->m[which];
    uint32_t at = panel * LANES, n = MIN(LANES, m->n_out - at);

    scale_and_add_bias(m, at, n, n_rows, acc);
    if (mm->mode == MATMUL_GLU) {
        scale_and_add_bias(mm->m[1], at, n, n_rows, up);
        if (mm->glu == GLU_CUT)
            mm->kernels->silu_cut(acc, up, acc, n_rows * LANES, mm->limit);
        else if (mm->limit > 0)
            mm->kernels->silu_limited(acc, up, acc, n_rows * LANES, mm->limit);
        else
            mm->kernels->glu[mm->glu](acc, up, acc, n_rows * LANES);
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

/* Computes panel @panel of a product, and up to @n - 1 that follow in its matrix, for rows [row0,
 * row0 + n_rows). The panels of its matrices are numbered consecutively; a gate and an up matrix
 * count as one. An FFN without a gate has the same matrix as both, which is multiplied once.
 * Returns the number of panels. */
static uint32_t do_panels(const struct matmul *mm, uint32_t panel, uint32_t n, uint32_t row0,
                          uint32_t n_rows, struct matmul_scratch *s) {
    uint32_t which = 0;
    bool two = mm->mode == MATMUL_GLU, same = two && mm->m[1]->data == mm->m[0]->data;

    while (!two && panel >= mm->m[which]->n_panels)
        panel -= mm->m[which++]->n_panels;
    n = MIN(MIN(n, mm->m[which]->n_panels - panel), MATMUL_PANELS);
    if (two && !same)
        matmul_multiply(mm, mm->m[1], panel, n, row0, n_rows, s->acc[1], s->quants);
    matmul_multiply(mm, mm->m[which], panel, n, row0, n_rows, s->acc[0], s->quants);
    for (uint32_t i = 0; i < n; i++) {
        float *acc = s->acc[0] + i * MATMUL_SUMS, *up = s->acc[1] + i * MATMUL_SUMS;

        if (same)
            memcpy(up, acc, n_rows * LANES * sizeof(float));
        write_out(mm, which, panel + i, row0, n_rows, acc, up);
    }
    return n;
}

/* Returns the range of items [from, to) as one word, which can be changed atomically. */
static uint64_t range_of(uint32_t from, uint32_t to) {
    return (uint64_t)to << 32 | from;
}

/* Takes the first item of a range. Returns false if it is empty. */
static bool matmul_acquire_item(_Atomic uint64_t *range, uint32_t *item) {
    uint64_t s = atomic_load_explicit(range, memory_order_relaxed);

    for (;;) {
        uint32_t from = (uint32_t)s, to = (uint32_t)(s >> 32);

        if (from >= to)
            return false;
        if (atomic_compare_exchange_weak(range, &s, range_of(from + 1, to))) {
            *item = from;
            return true;
        }
    }
}

/* Moves the back half of the largest range to @thread, whose range is empty. Returns false if all
 * ranges are empty. */
static bool steal(const struct run *r, uint32_t thread) {
    struct matmul_scratch *scratch = r->mm[0].scratch;

    for (;;) {
        uint32_t most = 0, victim = 0;
        uint64_t s = 0;

        for (uint32_t i = 0; i < r->n_threads; i++) {
            uint64_t x = atomic_load_explicit(&scratch[i].range, memory_order_relaxed);
            uint32_t from = (uint32_t)x, to = (uint32_t)(x >> 32);

            if (from < to && to - from > most) {
                most = to - from;
                victim = i;
                s = x;
            }
        }
        if (most == 0)
            return false;
        uint32_t from = (uint32_t)s, to = (uint32_t)(s >> 32), cut = from + most / 2;
        if (atomic_compare_exchange_weak(&scratch[victim].range, &s, range_of(from, cut))) {
            atomic_store(&scratch[thread].range, range_of(cut, to));
            return true;
        }
    }
}

/* Returns the product that item @item belongs to. */
static const struct matmul *find_product(const struct run *r, uint32_t item) {
    uint32_t low = 0, high = r->n;

    while (high - low > 1) {
        uint32_t mid = (low + high) / 2;

        if (r->mm[mid].first_item <= item)
            low = mid;
        else
            high = mid;
    }
    return &r->mm[low];
}

/* Computes an item: a stretch of panels times a chunk of rows. */
static void matmul_do_item(const struct run *r, uint32_t item, uint32_t thread) {
    const struct matmul *mm = find_product(r, item);
    uint32_t per_chunk = (mm->n_panels + mm->stretch - 1) / mm->stretch, i = item - mm->first_item;
    uint32_t row0 = i / per_chunk * mm->chunk_rows, first = i % per_chunk * mm->stretch;

    uint32_t end = MIN(first + mm->stretch, mm->n_panels);

    assert(row0 < mm->n_rows && first < mm->n_panels);
    while (first < end)
        first += do_panels(mm, first, end - first, row0, MIN(mm->chunk_rows, mm->n_rows - row0),
                           &mm->scratch[thread]);
}

/* Implements pool_fn: computes items until there are no more. */
static void do_items(void *ctx, uint32_t thread) {
    struct run *r = ctx;
    uint32_t item;

    if (!r->steals) {
        while ((item = atomic_fetch_add(&r->next, 1)) < r->n_items)
            matmul_do_item(r, item, thread);
        return;
    }
    do {
        while (matmul_acquire_item(&r->mm[0].scratch[thread].range, &item))
            matmul_do_item(r, item, thread);
    } while (steal(r, thread));
}

/* Gives every thread an equal range of consecutive items. */
static void deal(const struct run *r) {
    for (uint64_t i = 0; i < r->n_threads; i++)
        atomic_store_explicit(&r->mm[0].scratch[i].range,
                              range_of((uint32_t)(r->n_items * i / r->n_threads),
                                       (uint32_t)(r->n_items * (i + 1) / r->n_threads)),
                              memory_order_relaxed);
}

/* Returns the most rows of a chunk whose activations stay in the second-level cache, so that each
 * panel finds them there. Of floats and of BF16 only those of a piece of the panel do, since the
 * next level is fast enough for the rest: what counts is how often the panel is unpacked. */
static uint32_t cached_rows(const struct mat *m) {
    const enum acts_kind kind = panel_infos[m->format].acts;
    size_t rows = ACTS_CACHED / acts_bytes(kind, m->n_in, 1) / CHUNK * CHUNK;

    if (kind == ACTS_F || kind == ACTS_H)
        return MATMUL_ROWS;
    return (uint32_t)MIN(MAX(rows, 4 * TILE), MATMUL_ROWS);
}

/* Chooses the panels of an item and the rows of a chunk: several panels if there are still @n_items
 * items then. Chunks have about the same number of rows. */
static void matmul_choose_items(struct matmul *mm, size_t panel_bytes, uint32_t n_items) {
    const struct gemm_wide *wide = gemm_wide_of(mm->kernels, mm->m[0]->format);
    uint32_t most = cached_rows(mm->m[0]), shared = MAX(most, PIECE_ROWS);
    uint32_t n_shared = (mm->n_rows + shared - 1) / shared * mm->n_panels / MATMUL_PANELS;

    mm->stretch = 1;
    if (mm->n_rows <= 2 * TILE) {
        mm->stretch = (uint32_t)MAX(STRETCH / panel_bytes, 1);
    } else if (wide->unpack && n_shared >= n_items) {
        mm->stretch = MATMUL_PANELS;
        most = shared;
    }
    mm->n_chunks = (mm->n_rows + most - 1) / most;
    uint32_t even = (mm->n_rows + mm->n_chunks - 1) / mm->n_chunks;
    mm->chunk_rows = MIN((even + CHUNK - 1) / CHUNK * CHUNK, most);
}

/* Divides a product into items, into @n_items if that is no waste. Returns their number. */
static uint32_t matmul_cut(struct matmul *mm, uint32_t n_items) {
    /* a gate and an up matrix count as one */
    bool two = mm->mode == MATMUL_GLU;

    assert(mm->n_rows > 0 && mm->n_mats > 0 && mm->n_mats <= ARRAY_SIZE(mm->m));
    assert(mm->mode != MATMUL_GLU || mm->m[0]->n_panels == mm->m[1]->n_panels);
    assert(mm->mode != MATMUL_ADD || mm->n_mats == 1);
    for (uint32_t i = 0; i < mm->n_mats; i++)
        assert(mm->m[i]->n_in == mm->m[0]->n_in && mm->acts[panel_infos[mm->m[i]->format].acts]);
    mm->n_panels = 0;
    for (uint32_t i = 0; i < mm->n_mats - two; i++)
        mm->n_panels += mm->m[i]->n_panels;
    matmul_choose_items(mm, mm->m[0]->panel_bytes * (1 + two), n_items);
    return (mm->n_panels + mm->stretch - 1) / mm->stretch * mm->n_chunks;
}

void matmul_run(struct pool *p, struct matmul *mm, uint32_t n) {
    struct run r = {.mm = mm, .n = n, .n_threads = pool_n_threads(p), .steals = true};

    assert(n > 0);
    for (uint32_t i = 0; i < n; i++) {
        mm[i].first_item = r.n_items;
        r.n_items += matmul_cut(&mm[i], ITEMS * r.n_threads / n);
        r.steals = r.steals && mm[i].n_rows <= 2 * TILE;
    }
    if (r.steals)
        deal(&r);
    pool_run(p, do_items, &r);
}
