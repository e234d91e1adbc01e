/*
 * Tests attention over pages: as close to a softmax in double precision as the rounding of pages
 * allows, and the same bits with every instruction set, page size, division of the prompt and
 * number of threads, whatever other positions of a page contain.
 */

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/mathx.h"
#include "engine/cpu/state.h"
#include "tests/engine/cpu/fixture.h"
#include "tests/support/few.h"

/* Keys fill several chunks, the last one in part. The work grows with the square of KEYS. */
enum { KEYS = FEWER(530, 300) };
enum { KV_HEADS = 2, MAX_WIDTH = 128, MAX_GROUP = 5, SEQS = 3, PAGES = KEYS / 16 + 1 };

static const char *const isas[] = {"generic", "avx2", "avx512", "neon", "dotprod", "i8mm"};

struct sheet { /* inputs, in place of the layers of a model */
    uint32_t head_dim, group, window;
    bool chunked;
    float cap;
    bool sinks;
    float q[KEYS * KV_HEADS * MAX_GROUP * MAX_WIDTH];
    float k[KEYS * KV_HEADS * MAX_WIDTH], v[KEYS * KV_HEADS * MAX_WIDTH];
};

struct way {
    const char *isa;
    /* chunk: rows of a step */
    uint32_t page_tokens, n_threads, chunk;
    struct kv_formats type;
    /* pages are filled with NaN first */
    bool dirty;
};

static bool tight; /* the states of only one item's chunks have room */

struct rig {
    struct be be;
    struct engine_batch batch;
    struct engine_seq seq[SEQS];
    uint32_t start[SEQS + 1], page[SEQS * PAGES], row_seq[KEYS], row_pos[KEYS];
    const struct sheet *sheet;
};

static float sink_of(uint32_t head) {
    return 1.5f - 0.75f * (float)head;
}

static void rig_open(struct rig *r, const struct sheet *s, const struct way *w) {
    uint32_t hd = s->head_dim, n_pages = SEQS * PAGES;
    struct be *b = &r->be;

    memset(r, 0, sizeof(*r));
    r->sheet = s;
    b->kernels = isa_find(w->isa, NULL);
    cr_assert(pool_new(&b->pool, w->n_threads) == 0);
    b->shape = (struct model_shape){.n_layer = 1, .widest = {.head = hd, .group = s->group}};
    b->max_rows = KEYS;
    b->kv_type = w->type;
    b->page_tokens = w->page_tokens;
    struct kv_memory *kv = &b->kv[KV_GLOBAL];
    kv->page_bytes = kv_bytes_both(b->kv_type, (size_t)2 * KV_HEADS * w->page_tokens * hd);
    kv->n_pages = n_pages;
    kv->bytes = n_pages * kv->page_bytes;
    kv->at = be_map(b, kv->bytes);
    memset(kv->at, w->dirty ? 0x7F : 0, kv->bytes);
    b->act_width[ACT_Q] = b->act_width[ACT_O] = (size_t)KV_HEADS * s->group * hd;
    b->act[ACT_Q] = calloc(KEYS, b->act_width[ACT_Q] * sizeof(float));
    b->act[ACT_O] = calloc(KEYS, b->act_width[ACT_O] * sizeof(float));
    cr_assert(kv->at && b->act[ACT_Q] && b->act[ACT_O] && attend_open(b, KEYS) == 0);
    if (tight)
        b->n_partial = s->group * ((KEYS + ATTEND_CHUNK - 1) / ATTEND_CHUNK);
    for (uint32_t i = 0; i < n_pages; i++)
        r->page[i] = (i * 7 + 3) % n_pages; /* scattered: 7 and n_pages have no common factor */
    for (uint32_t i = 0; i <= SEQS; i++)
        r->start[i] = i * PAGES;
    r->batch = (struct engine_batch){.n_seqs = 1, .seq = r->seq};
    r->batch.table[KV_GLOBAL].start = r->start;
    r->batch.table[KV_GLOBAL].page = r->page;
    b->step.be = b;
    b->step.host = (struct host_step){
        .batch = &r->batch,
        .page_tokens = w->page_tokens,
        .row_seq = r->row_seq,
        .row_pos = r->row_pos,
    };
}

static void rig_close(struct rig *r) {
    be_release(&r->be);
    pool_free(r->be.pool);
    free(r->be.act[ACT_Q]);
    free(r->be.act[ACT_O]);
}

static struct kv_view view_of(const struct rig *r) {
    return be_view(&r->be, &(struct heads){.n = KV_HEADS * r->sheet->group,
                                           .n_kv = KV_HEADS,
                                           .dim = r->sheet->head_dim});
}

/* Adds a row of sequence @seq at position @p with the queries of @s, and writes its keys and
 * values. */
static void add_row(struct rig *r, const struct sheet *s, uint32_t seq, uint32_t p) {
    struct be *b = &r->be;
    struct kv_view view = view_of(r);
    uint32_t hd = s->head_dim, row = b->step.n_rows++, pt = b->page_tokens;
    size_t width = b->act_width[ACT_Q], at = (size_t)p * KV_HEADS * hd;
    uint8_t *page = be_page(b, KV_GLOBAL, r->page[r->start[seq] + p / pt]);

    for (uint32_t h = 0; h < KV_HEADS; h++)
        b->kernels->kv_write(&view, page + h * view.k_head,
                             page + KV_HEADS * view.k_head + h * view.v_head, p % pt,
                             s->k + at + h * hd, s->v + at + h * hd);
    memcpy(b->act[ACT_Q] + row * width, s->q + p * width, width * sizeof(float));
    r->row_pos[row] = p;
    r->row_seq[row] = seq;
    if (r->seq[seq].n_rows++ == 0) {
        r->seq[seq].row0 = row;
        r->seq[seq].pos0 = p;
    }
}

/* Attends with the added rows, and removes them. */
static void attend_rows(struct rig *r) {
    const struct sheet *s = r->sheet;
    float sinks[KV_HEADS * MAX_GROUP];
    struct weights weights = {.sinks = s->sinks ? sinks : NULL};
    const struct model_op op = {
        .kind = OP_ATTEND,
        .heads = {KV_HEADS * s->group, KV_HEADS, s->head_dim},
        .attn = {.scale = 1 / sqrtf((float)s->head_dim),
                 .window = s->window,
                 .cap = s->cap,
                 .chunked = s->chunked},
        .weights = &weights,
    };

    for (uint32_t h = 0; h < KV_HEADS * s->group; h++)
        sinks[h] = sink_of(h);
    attend_run(&r->be.step, &op);
    r->be.step.n_rows = 0;
    memset(r->seq, 0, sizeof(r->seq));
}

/* Positions [pos, pos + n): writes their keys and values, then attends. @out: [position][...] */
static void rig_step(struct rig *r, uint32_t pos, uint32_t n, float *out) {
    size_t width = r->be.act_width[ACT_Q];

    for (uint32_t i = 0; i < n; i++)
        add_row(r, r->sheet, 0, pos + i);
    attend_rows(r);
    memcpy(out + pos * width, r->be.act[ACT_O], n * width * sizeof(float));
}

static void run(const struct sheet *s, const struct way *w, float *out) {
    static struct rig r;

    rig_open(&r, s, w);
    for (uint32_t pos = 0; pos < KEYS; pos += w->chunk)
        rig_step(&r, pos, MIN(w->chunk, KEYS - pos), out);
    rig_close(&r);
}

static void fill(struct sheet *s, uint32_t head_dim, uint32_t group) {
    s->head_dim = head_dim;
    s->group = group;
    fixture_normal(s->q, KEYS * KV_HEADS * group * head_dim, 1);
    fixture_normal(s->k, KEYS * KV_HEADS * head_dim, 2);
    fixture_normal(s->v, KEYS * KV_HEADS * head_dim, 3);
    for (uint32_t i = 0; i < KEYS * KV_HEADS * group * head_dim; i++)
        s->q[i] *= 2; /* some weights far from equal */
}

/* Rounds @n values as a page does: to halves, or to multiples of a scale for each 32. */
static void round_values(enum engine_kv_type type, const float *x, size_t n, float *out) {
    for (size_t i = 0; i < n && type == ENGINE_KV_F16; i++)
        out[i] = mx_half_to_float(mx_float_to_half(x[i]));
    for (size_t i = 0; i < n && type != ENGINE_KV_F16; i += 32) {
        float most = x[i], low = type == ENGINE_KV_Q8_0 ? -127 : -8;

        for (size_t j = i; j < i + 32; j++)
            most = fabsf(x[j]) > fabsf(most) ? x[j] : most;
        most = type == ENGINE_KV_Q8_0 ? fabsf(most) / 127 : most / -8;
        float scale = mx_half_to_float(mx_float_to_half(most));
        for (size_t j = i; j < i + 32; j++)
            out[j] = scale * fmaxf(low, fminf(rintf(x[j] * (1.0f / scale)),
                                              type == ENGINE_KV_Q8_0 ? 127 : 7));
    }
}

/* Returns value @d of @x, whose runs of @run were multiplied by a Hadamard matrix (0: none), from
 * another definition of that matrix: entry (i, j) is negative if i and j have an odd number of
 * common bits. */
static double turned_back(const double *x, uint32_t d, uint32_t run) {
    double sum = 0;

    if (run == 0)
        return x[d];
    for (uint32_t i = 0; i < run; i++)
        sum += (__builtin_popcount(i & d % run) % 2 ? -1 : 1) * x[d / run * run + i];
    return sum / sqrt(run);
}

/* Checks a head's output @got. @s has the values in the form of the pages, multiplied by the
 * Hadamard matrix of @run. */
static void check_row(const struct sheet *s, uint32_t pos, uint32_t head, uint32_t run,
                      const float *got) {
    uint32_t hd = s->head_dim, kv = head / s->group;
    const float *q = s->q + ((size_t)pos * KV_HEADS * s->group + head) * hd;
    double weight[KEYS], held[MAX_WIDTH], most = s->sinks ? (double)sink_of(head) : -1e30, sum = 0;
    double tolerance = 2e-5, cap = (double)s->cap;
    uint32_t from = s->window && pos >= s->window ? pos - s->window + 1 : 0;

    if (s->chunked)
        from = pos / s->window * s->window;
    for (uint32_t j = from; j <= pos; j++) {
        weight[j] = 0;
        for (uint32_t d = 0; d < hd; d++)
            weight[j] += (double)q[d] * (double)s->k[((size_t)j * KV_HEADS + kv) * hd + d];
        weight[j] /= sqrt(hd);
        weight[j] = cap > 0 ? cap * tanh(weight[j] / cap) : weight[j];
        most = fmax(most, weight[j]);
    }
    for (uint32_t j = from; j <= pos; j++)
        sum += weight[j] = exp(weight[j] - most);
    sum += s->sinks ? exp((double)sink_of(head) - most) : 0;
    for (uint32_t d = 0; d < hd; d++) {
        held[d] = 0;
        for (uint32_t j = from; j <= pos; j++)
            held[d] += weight[j] / sum * (double)s->v[((size_t)j * KV_HEADS + kv) * hd + d];
    }
    for (uint32_t d = 0; d < hd; d++) {
        double exact = turned_back(held, d, run);

        cr_expect(fabs(exact - (double)got[head * hd + d]) <= tolerance,
                  "position %u head %u dimension %u: %g, exact %g", pos, head, d,
                  (double)got[head * hd + d], exact);
    }
}

static struct sheet s;

/* @turned: length of the runs that are multiplied by a Hadamard matrix. */
static void check_types(uint32_t head_dim, uint32_t group, struct kv_formats type,
                        uint32_t turned) {
    static float expect[KEYS * KV_HEADS * MAX_GROUP * MAX_WIDTH],
        got[KEYS * KV_HEADS * MAX_GROUP * MAX_WIDTH];
    static const struct way ways[] = {
        {NULL, 16, 1, KEYS, {0}, true}, {NULL, 32, 3, KEYS, {0}, true}, {NULL, 64, 3, 1, {0}, true},
        {NULL, 32, 1, 7, {0}, false},   {NULL, 16, 3, 37, {0}, true},   {NULL, 64, 3, 1, {0}, true},
    };
    struct way first = {"generic", 16, 1, 1, type, false};
    size_t width = (size_t)KV_HEADS * group * head_dim;

    static struct sheet held;

    fill(&s, head_dim, group);
    held = s;
    round_values(type.k, s.k, KEYS * KV_HEADS * head_dim, held.k);
    round_values(type.v, s.v, KEYS * KV_HEADS * head_dim, held.v);
    tight = false;
    run(&s, &first, expect);
    for (uint32_t pos = 0; pos < KEYS; pos = pos * 2 + 1)
        for (uint32_t head = 0; head < KV_HEADS * group; head += group)
            check_row(&held, pos, head, turned, expect + pos * width);
    for (size_t i = 0; i < ARRAY_SIZE(isas); i++) {
        if (!isa_find(isas[i], NULL)) {
            printf("# %s cannot be run here\n", isas[i]);
            continue;
        }
        for (size_t j = 0; j < ARRAY_SIZE(ways); j++) {
            struct way w = ways[j];

            w.isa = isas[i];
            w.type = type;
            tight = j == ARRAY_SIZE(ways) - 1;
            memset(got, 0, sizeof(got));
            run(&s, &w, got);
            cr_expect(memcmp(got, expect, KEYS * width * sizeof(float)) == 0,
                      "%s, head %u x %u, kv types %d %d, pages of %u, %u threads, chunks of %u",
                      w.isa, head_dim, group, (int)type.k, (int)type.v, w.page_tokens, w.n_threads,
                      w.chunk);
        }
    }
}

static void check(uint32_t head_dim, uint32_t group, enum engine_kv_type type) {
    check_types(head_dim, group, kv_both(type),
                type == ENGINE_KV_F16 ? 0
                : head_dim % 64 == 0  ? 64
                                      : 32);
}

Test(cpu_attention, half_precision_pages) {
    check(128, 2, ENGINE_KV_F16);
    check(64, 1, ENGINE_KV_F16);
}

Test(cpu_attention, eight_bit_pages) {
    check(128, 2, ENGINE_KV_Q8_0);
    check(96, 3, ENGINE_KV_Q8_0);
}

Test(cpu_attention, four_bit_pages) {
    check(128, 2, ENGINE_KV_Q4_0);
    check(96, 3, ENGINE_KV_Q4_0);
}

/* Each format is combined with another one, once for keys and once for values. */
Test(cpu_attention, keys_and_values_apart) {
    check_types(64, 2, (struct kv_formats){ENGINE_KV_Q8_0, ENGINE_KV_Q4_0}, 64);
    check_types(64, 1, (struct kv_formats){ENGINE_KV_Q4_0, ENGINE_KV_F16}, 0);
    check_types(64, 1, (struct kv_formats){ENGINE_KV_F16, ENGINE_KV_Q8_0}, 64);
}

/* Windows that begin inside a tile, inside a chunk, and in an earlier chunk than they end. */
Test(cpu_attention, windows_and_sinks) {
    static const uint32_t window[] = {12, 100, 257};

    for (size_t i = 0; i < ARRAY_SIZE(window); i++) {
        s.window = window[i];
        s.sinks = i % 2 == 0;
        check(i % 2 ? 64 : 40, 1 + (uint32_t)i, i == 1 ? ENGINE_KV_Q8_0 : ENGINE_KV_F16);
    }
}

/* Chunks of keys that end inside a tile, with it, and inside a chunk of the kernel's. */
Test(cpu_attention, chunks_see_nothing_before_them) {
    static const uint32_t chunk[] = {10, 64, 300};

    for (size_t i = 0; i < ARRAY_SIZE(chunk); i++) {
        s.window = chunk[i];
        s.chunked = true;
        check(64, 1 + (uint32_t)i, i == 1 ? ENGINE_KV_Q8_0 : ENGINE_KV_F16);
    }
}

Test(cpu_attention, scores_with_a_cap) {
    s.cap = 2;
    check(64, 2, ENGINE_KV_F16);
    s.window = 50;
    check(64, 2, ENGINE_KV_Q4_0);
}

Test(cpu_attention, odd_heads_and_groups) {
    check(40, 5, ENGINE_KV_F16);
    check(23, 1, ENGINE_KV_F16);
}

/* Sequences that share their first pages and then differ, at different positions. */
Test(cpu_attention, sequences_that_share_pages) {
    enum { SHARED = KEYS * 2 / 3 / 64 * 64 + 16, WIDTH = KV_HEADS * 2 * 128 };
    static float expect[2][KEYS * WIDTH];
    static struct sheet other;
    static struct rig r;
    static const struct rows {
        uint32_t sheet, pos, n;
    } all[2][SEQS] = {
        {{0, SHARED + 5, 3}, {1, KEYS - 40, 39}, {0, KEYS - 1, 1}},
        {{0, KEYS - 230, 1}, {1, KEYS - 40, 1}, {0, KEYS - 1, 1}}, /* with divided keys */
    };
    const struct sheet *sheet[] = {&s, &other};

    fill(&s, 128, 2);
    other = s;
    fixture_normal(other.q, KEYS * WIDTH, 4);
    fixture_normal(other.k + SHARED * KV_HEADS * 128, (KEYS - SHARED) * KV_HEADS * 128, 5);
    fixture_normal(other.v + SHARED * KV_HEADS * 128, (KEYS - SHARED) * KV_HEADS * 128, 6);
    for (uint32_t i = 0; i < 2 * 2 * 3; i++) {
        uint32_t pages = 16u << i / 4, threads = 1 + i / 2 % 2 * 2;
        struct way w = {"auto", pages, threads, KEYS, {0}, true};
        const struct rows *rows = all[i % 2];

        for (int k = 0; k < 2 && i % 2 == 0; k++)
            run(sheet[k], &w, expect[k]);
        rig_open(&r, &s, &w);
        for (uint32_t q = 1; q < SEQS; q++)
            memcpy(r.page + r.start[q], r.page, SHARED / pages * sizeof(*r.page));
        for (uint32_t q = 0; q < SEQS; q++) {
            for (uint32_t p = 0; p < rows[q].pos; p++)
                add_row(&r, sheet[rows[q].sheet], q, p);
            r.be.step.n_rows = 0;
        }
        memset(r.seq, 0, sizeof(r.seq));
        for (uint32_t q = 0; q < SEQS; q++)
            for (uint32_t k = 0; k < rows[q].n; k++)
                add_row(&r, sheet[rows[q].sheet], q, rows[q].pos + k);
        r.batch.n_seqs = SEQS;
        attend_rows(&r);
        const float *got = r.be.act[ACT_O];
        for (uint32_t q = 0; q < SEQS; got += rows[q++].n * WIDTH)
            cr_expect(memcmp(got, expect[rows[q].sheet] + (size_t)rows[q].pos * WIDTH,
                             rows[q].n * WIDTH * sizeof(float)) == 0,
                      "sequence %u with %u rows, pages of %u, %u threads", q, rows[q].n, pages,
                      threads);
        rig_close(&r);
    }
}

/* The sizes are those of DeepSeek V3: without a bound, states of chunks would take 6 GiB. */
#ifndef __SANITIZE_ADDRESS__
Test(cpu_attention, long_contexts_of_many_heads_need_little_memory) {
    const struct rlimit limit = {UINT64_C(4) << 30, UINT64_C(4) << 30};
    static struct be b;

    b.shape = (struct model_shape){.n_layer = 1, .widest = {.head = 576, .group = 128}};
    b.max_rows = 1;
    cr_assert_eq(pool_new(&b.pool, 8), 0);
    cr_assert_eq(setrlimit(RLIMIT_AS, &limit), 0);
    cr_expect_eq(attend_open(&b, 163840), 0);
    be_release(&b);
    pool_free(b.pool);
}
#endif
