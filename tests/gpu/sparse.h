#pragma once

/*
 * sparse - checks the kernels of sparse attention with the sizes of Qwen3.8-Flash-Next, MiniMax M3
 * and GLM-5.3-Flash against double precision: keys of blocks, the indexer's choice among them, and
 * attention to the keys of the chosen blocks. Part of kernels.c, after compressed.h.
 */

#include "engine/ops/sparse/kernels_sparse.h"

/* Checks, without RoPE, the keys of blocks that end in the step, whose tokens are in the state and
 * in the step; and that other blocks keep their keys. */
static void check_mean(uint32_t block, uint32_t dim, uint32_t pos0) {
    uint32_t end = pos0 + CSA_ROWS, last = end / block, n_wrong = 0;
    float *k = csa_random(CSA_ROWS * dim), *state = csa_random(2ull * block * dim);
    float *norm = csa_random(dim), *keys, *got = host_new(dim * 4);
    double *right = host_new(dim * 8), worst = 0, square = 0;
    struct mean_args a = {.batch = csa_batch(pos0),
                          .k = device_of(k, CSA_ROWS * dim * 4),
                          .state = device_of(state, 2ull * block * dim * 4),
                          .stride = (size_t)block * dim,
                          .end = {.norm = device_of(norm, dim * 4),
                                  .keys = csa_keys(end, block, dim, &keys),
                                  .turn = {.dim = dim},
                                  .eps = 1e-6f,
                                  .mscale = 1}};
    uint32_t n_pages = end / CSA_PAGE + 1;
    uint16_t *before = host_new(n_pages * a.end.keys.page_bytes);
    uint16_t *pages = host_new(n_pages * a.end.keys.page_bytes);
    char name[80];

    fetch(before, a.end.keys.pages, n_pages * a.end.keys.page_bytes);
    launch(kernel_mean_keys, CSA_ROWS + 1, 1, CUDA_THREADS, &a, "mean_keys");
    fetch(pages, a.end.keys.pages, n_pages * a.end.keys.page_bytes);
    for (uint32_t i = 0; i < last; i++) {
        uint32_t first = i * block, page = n_pages - 1 - (first + block - 1) / CSA_PAGE;
        size_t at = page * a.end.keys.page_bytes / 2 + a.end.keys.at +
                    (size_t)(first % CSA_PAGE / block) * dim;

        if (first + block <= pos0) { /* a block of an earlier step */
            n_wrong += memcmp(pages + at, before + at, dim * 2) != 0;
            continue;
        }
        square = 0;
        for (uint32_t j = 0; j < dim; j++) {
            right[j] = 0;
            for (uint32_t p = first; p < first + block; p++)
                right[j] += p < pos0 ? (double)state[(block + p % block) * dim + j]
                                     : (double)k[(p - pos0) * dim + j];
            right[j] /= block;
            square += right[j] * right[j];
            got[j] = mx_half_to_float(pages[at + j]);
        }
        for (uint32_t j = 0; j < dim; j++)
            right[j] *= (double)norm[j] / sqrt(square / dim + 1e-6);
        worst = fmax(worst, csa_distance(got, right, dim));
    }
    snprintf(name, sizeof(name), "keys of blocks of %u, dim %u, position %u", block, dim, pos0);
    report_check(name, square > 0 ? worst : 1, 1e-3);
    report_check("other blocks keep theirs", n_wrong, 0);
    void *const held[] = {k, state, norm, keys, got, right, before, pages};
    for (size_t i = 0; i < ARRAY_SIZE(held); i++)
        free(held[i]);
}

/* Returns channel @i of the key of the block of positions from @first on: the mean of k, weighted
 * by the softmax of g and the place in the block. @which 0 of a token is k, 1 is g. */
static double pooled_value(const struct compress_args *a, const float *step, const float *state,
                           const float *place, uint32_t pos0, uint32_t first, uint32_t i) {
    uint32_t block = a->end.keys.block, n = a->width;
    double sum = 0, mean = 0;

    for (uint32_t p = first; p < first + block; p++) {
        const float *k = state + (a->n_kept + p % a->n_kept) * 2 * n;
        const float *g = k + n;

        if (p >= pos0) {
            k = step + (p - pos0) * n;
            g = k + CSA_ROWS * n;
        }
        double weight = exp((double)g[i] + (double)place[i * block + p % block]);

        sum += weight;
        mean += weight * (double)k[i];
    }
    return mean / sum;
}

/* Checks the keys of POOL_KEYS of blocks that end in the step, and the state that the next step
 * reads. */
static void check_pooled(uint32_t block, uint32_t dim, uint32_t n_kept, uint32_t pos0) {
    uint32_t end = pos0 + CSA_ROWS, n_pages = end / CSA_PAGE + 1, n_wrong = 0;
    size_t n = (size_t)CSA_ROWS * dim, all = 2ull * n_kept * 2 * dim;
    float *step = csa_random(2 * n), *state = csa_random(all), *place = csa_random(dim * block);
    float *keys, *got = host_new(dim * 4), *after = host_new(all * 4);
    double *right = host_new(dim * 8), worst = 0;
    const struct compress_args a = {.batch = csa_batch(pos0),
                                    .u = device_of(step, n * 4),
                                    .g = device_of(step + n, n * 4),
                                    .place = device_of(place, dim * block * 4),
                                    .state = device_of(state, all * 4),
                                    .stride = all / 2,
                                    .end.keys = csa_keys(end, block, dim, &keys),
                                    .width = dim,
                                    .n_kept = n_kept};
    const struct keep_rows_args kept = {.batch = a.batch,
                                        .from = {a.u, a.g},
                                        .state = (float *)a.state,
                                        .stride = a.stride,
                                        .n_from = 2,
                                        .width = dim,
                                        .n_kept = n_kept};
    uint16_t *pages = host_new(n_pages * a.end.keys.page_bytes);
    char name[80];

    launch(kernel_compress, CSA_ROWS + 1, 1, CUDA_THREADS, &a, "compress");
    launch(kernel_keep_rows, 2, n_kept, CUDA_THREADS, &kept, "keep_rows");
    fetch(pages, a.end.keys.pages, n_pages * a.end.keys.page_bytes);
    fetch(after, a.state, all * 4);
    for (uint32_t first = pos0 / block * block; first + block <= end; first += block) {
        uint32_t page = n_pages - 1 - (first + block - 1) / CSA_PAGE;
        const uint16_t *key = pages + page * a.end.keys.page_bytes / 2 + a.end.keys.at +
                              (size_t)(first % CSA_PAGE / block) * dim;

        for (uint32_t i = 0; i < dim; i++) {
            got[i] = mx_half_to_float(key[i]);
            right[i] = pooled_value(&a, step, state, place, pos0, first, i);
        }
        worst = fmax(worst, csa_distance(got, right, dim));
    }
    for (uint32_t p = end - MIN(CSA_ROWS, n_kept); p < end; p++)
        for (uint32_t w = 0; w < 2; w++)
            n_wrong += memcmp(after + ((n_kept + p % n_kept) * 2 + w) * dim,
                              step + (w * CSA_ROWS + p - pos0) * dim, dim * 4) != 0;
    snprintf(name, sizeof(name), "pooled keys of blocks of %u, dim %u, position %u", block, dim,
             pos0);
    report_check(name, worst, 1e-3);
    report_check("kept tokens of pooled keys", n_wrong, 0);
    void *const held[] = {step, state, place, keys, got, after, right, pages};
    for (size_t i = 0; i < ARRAY_SIZE(held); i++)
        free(held[i]);
}

static float dot_of(const float *x, const float *y, uint32_t n) {
    float sum = 0;

    for (uint32_t i = 0; i < n; i++)
        sum += x[i] * y[i];
    return sum;
}

/* Makes the keys and the @n queries of a choice small integers, whose sums are exact and often
 * equal. keys: those in the pages, [n_keys]. */
static void make_whole(struct block_keys *on, float *keys, size_t n_keys, float *q, size_t n,
                       uint32_t n_pages) {
    uint16_t *pages = host_new(n_pages * on->page_bytes);

    for (size_t i = 0; i < n; i++)
        q[i] = rintf(q[i] * 2);
    fetch(pages, on->pages, n_pages * on->page_bytes);
    for (size_t i = 0; i < n_pages * on->page_bytes / 2; i++)
        pages[i] = mx_float_to_half(rintf(mx_half_to_float(pages[i])));
    for (size_t i = 0; i < n_keys; i++)
        keys[i] = rintf(keys[i]);
    on->pages = device_of(pages, n_pages * on->page_bytes);
    free(pages);
}

/* Checks that the device chooses the blocks that the host chooses. */
static void check_index(uint32_t n_head, uint32_t dim, uint32_t n_best, uint32_t pos0) {
    uint32_t end = pos0 + CSA_ROWS, n = end / 4, *pick = host_new((size_t)CSA_ROWS * n_best * 4);
    uint32_t *best = host_new(n_best * 4), n_pick[CSA_ROWS], n_wrong = 0;
    float *q = csa_random((size_t)CSA_ROWS * n_head * dim), *keys, *score = host_new(n * 4);
    struct block_keys on = csa_keys(end, 4, dim, &keys);

    make_whole(&on, keys, (size_t)n * dim, q, (size_t)CSA_ROWS * n_head * dim, end / CSA_PAGE + 1);
    struct pick_args a = {.batch = csa_batch(pos0),
                          .q = device_of(q, (size_t)CSA_ROWS * n_head * dim * 4),
                          .score = device_new((size_t)CSA_ROWS * n * 4),
                          .pick = device_new((size_t)CSA_ROWS * n_best * 4),
                          .n_pick = device_new(sizeof(n_pick)),
                          .keys = on,
                          .n_head = n_head,
                          .n_best = n_best,
                          .stride = n,
                          .block = 4,
                          .n_set = 1};
    char name[100];

    launch(kernel_score_blocks, CSA_ROWS + 1, 2, CUDA_THREADS, &a, "score_blocks");
    launch(kernel_choose_blocks, CSA_ROWS + 1, 1, CUDA_THREADS, &a, "choose_blocks");
    fetch(pick, a.pick, (size_t)CSA_ROWS * n_best * 4);
    fetch(n_pick, a.n_pick, sizeof(n_pick));
    for (uint32_t r = 0; r < CSA_ROWS; r++) {
        uint32_t whole = (pos0 + r + 1) / 4;

        for (uint32_t i = 0; i < whole; i++) {
            score[i] = 0;
            for (uint32_t h = 0; h < n_head; h++)
                score[i] += fmaxf(
                    dot_of(q + ((size_t)r * n_head + h) * dim, keys + (size_t)i * dim, dim), 0);
        }
        n_wrong += sparse_best(score, whole, n_best, best) != n_pick[r] ||
                   memcmp(best, pick + (size_t)r * n_best, n_pick[r] * 4) != 0;
    }
    snprintf(name, sizeof(name), "choice of %u of %u blocks, many alike", n_best, n);
    report_check(name, n_wrong, 0);
    void *const held[] = {pick, best, q, keys, score};
    for (size_t i = 0; i < ARRAY_SIZE(held); i++)
        free(held[i]);
}

/* Returns true if the @n blocks of @pick, and the last block if it is not whole, are those that the
 * host chooses for a head at @pos. */
static bool heads_choice_is(const struct sparse_shape *p, uint32_t pos, const float *q,
                            const float *keys, const uint32_t *pick, uint32_t n) {
    uint32_t n_blocks = pos / p->block + 1, n_words = pos / 32 + 1, whole = (pos + 1) / p->block;
    uint32_t *right = host_new(n_words * 4), *got = host_new(n_words * 4);
    float *score = host_new(n_blocks * 4);

    for (uint32_t i = 0; i < n_blocks; i++)
        score[i] = -INFINITY;
    for (uint32_t i = 0; i <= pos; i++)
        score[i / p->block] =
            fmaxf(score[i / p->block], dot_of(q, keys + (size_t)i * p->dim, p->dim));
    sparse_see_blocks(p, pos, score, right);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t at = pick[i] * p->block; at < (pick[i] + 1) * p->block; at++)
            got[at / 32] |= 1u << at % 32;
    for (uint32_t at = whole * p->block; at <= pos; at++)
        got[at / 32] |= 1u << at % 32;
    bool same = memcmp(got, right, n_words * 4) == 0;
    void *const held[] = {right, got, score};
    for (size_t i = 0; i < ARRAY_SIZE(held); i++)
        free(held[i]);
    return same;
}

/* Checks that each head of keys chooses the blocks that the host chooses (score_heads). */
static void check_heads_choice(const struct sparse_shape *p, uint32_t pos0) {
    uint32_t end = pos0 + CSA_ROWS, n_blocks = end / p->block + 1, n_wrong = 0;
    uint32_t n_sets = CSA_ROWS * p->n_head, n_pick[CSA_ROWS];
    uint32_t *pick = host_new((size_t)n_sets * p->n_block * 4);
    float *q = csa_random((size_t)n_sets * p->dim), *keys;
    struct block_keys on = csa_keys(end, 1, p->dim, &keys);

    make_whole(&on, keys, (size_t)end * p->dim, q, (size_t)n_sets * p->dim, end / CSA_PAGE + 1);
    const struct pick_args a = {.batch = csa_batch(pos0),
                                .q = device_of(q, (size_t)n_sets * p->dim * 4),
                                .score = device_new((size_t)n_sets * n_blocks * 4),
                                .pick = device_new((size_t)n_sets * p->n_block * 4),
                                .n_pick = device_new(sizeof(n_pick)),
                                .keys = on,
                                .n_head = p->n_head,
                                .n_best = p->n_block,
                                .stride = n_blocks,
                                .block = p->block,
                                .n_set = p->n_head,
                                .n_local = p->n_local};
    char name[100];

    launch(kernel_score_heads, CSA_ROWS + 1, 2, CUDA_THREADS, &a, "score_heads");
    launch(kernel_choose_blocks, CSA_ROWS + 1, p->n_head, CUDA_THREADS, &a, "choose_blocks");
    fetch(pick, a.pick, (size_t)n_sets * p->n_block * 4);
    fetch(n_pick, a.n_pick, sizeof(n_pick));
    for (uint32_t i = 0; i < n_sets; i++)
        n_wrong += !heads_choice_is(p, pos0 + i / p->n_head, q + (size_t)i * p->dim, keys,
                                    pick + (size_t)i * p->n_block, n_pick[i / p->n_head]);
    snprintf(name, sizeof(name), "choice of %u of %u blocks by each of %u heads", p->n_block,
             n_blocks, p->n_head);
    report_check(name, n_wrong, 0);
    void *const held[] = {pick, q, keys};
    for (size_t i = 0; i < ARRAY_SIZE(held); i++)
        free(held[i]);
}

/* Rows of a sequence and the blocks that each of them sees. */
struct chosen {
    struct attention t;
    uint32_t block, n_best, *pick, *n_pick;
    const struct batch_head *batch;
};

/* Picks random blocks for each row. The first row sees the first and the last block. */
static void choose_some(struct chosen *c) {
    const struct attention *t = &c->t;
    uint32_t n = t->n_keys / c->block;
    float *score = host_new(n * 4);

    for (uint32_t r = 0; r < t->n_rows; r++) {
        uint32_t whole = (t->n_keys - t->n_rows + r + 1) / c->block;

        fill_floats(score, whole);
        if (r == 0 && whole)
            score[0] = score[whole - 1] = 10;
        c->n_pick[r] = sparse_best(score, whole, c->n_best, c->pick + (size_t)r * c->n_best);
    }
    free(score);
}

static const struct batch_head *batch_of(const struct attention *t) {
    const struct plan_seq seq = {.n_rows = t->n_rows, .pos0 = t->n_keys - t->n_rows};
    uint32_t *pos = host_new(t->n_rows * 4), *zero = host_new(t->n_rows * 4);

    for (uint32_t r = 0; r < t->n_rows; r++)
        pos[r] = seq.pos0 + r;
    const struct batch_head head = {.n_rows = t->n_rows,
                                    .n_seqs = 1,
                                    .pos = device_of(pos, t->n_rows * 4),
                                    .row_seq = device_of(zero, t->n_rows * 4),
                                    .seq = device_of(&seq, sizeof(seq)),
                                    .page_table = {t->table_on}};
    free(pos);
    free(zero);
    return device_of(&head, sizeof(head));
}

/* Computes attention of all rows, @at_once rows in each launch. */
static void attend_chosen(const struct chosen *c, uint32_t at_once, float *o) {
    const struct attention *t = &c->t;
    const struct page_shape *s = &t->shape;
    uint32_t n_value = attention_values(t);
    uint32_t n_head = s->n_head_kv * t->group, quads = n_head * n_value / 4;
    uint32_t groups = (t->group + CSA_HEADS - 1) / CSA_HEADS;
    size_t n = (size_t)t->n_rows * n_head * n_value;
    struct sparse_args a = {.of = {.batch = c->batch,
                                   .q = t->q_on,
                                   .o = device_new(n * 4),
                                   .pages = t->pages,
                                   .shape = *s,
                                   .n_head = n_head,
                                   .group = t->group,
                                   .n_value = n_value,
                                   .turned = t->turned_on,
                                   .turned_stride = s->head_dim - n_value,
                                   .scale = 1.0f / sqrtf((float)s->head_dim)},
                            .pick = device_of(c->pick, (size_t)t->n_rows * c->n_best * 4),
                            .n_pick = device_of(c->n_pick, t->n_rows * 4),
                            .block = c->block,
                            .n_best = c->n_best,
                            .n_set = 1};
    kernel_address *const kernels[] = {FOR_PAGES(ATTEND_ADDRESS, attend_sparse)};
    kernel_address *const latent[] = {FOR_PAGES_ALIKE(ATTEND_ADDRESS, attend_sparse_latent)};
    const void *kernel = s->latent ? *latent[attend_format(s)] : *kernels[attend_format(s)];

    a.n_parts = ((c->n_best + 1) * c->block - 1 + SPARSE_PART - 1) / SPARSE_PART;
    a.of.partial = device_new((size_t)at_once * n_head * a.n_parts * (n_value + 4) * 4);
    for (; a.row0 < t->n_rows; a.row0 += at_once) {
        launch(kernel, a.n_parts, at_once * s->n_head_kv * groups, CUDA_THREADS, &a,
               "attend_sparse");
        launch(kernel_merge_sparse, at_once, (quads + CUDA_THREADS - 1) / CUDA_THREADS,
               CUDA_THREADS, &a, "merge_sparse");
    }
    fetch(o, a.of.o, n * 4);
}

/* Returns the relative distance of @o from attention in double precision. */
static double chosen_error(const struct chosen *c, const float *o) {
    const struct attention *t = &c->t;
    uint32_t n_kv = t->shape.n_head_kv, dim = t->shape.head_dim, n_head = n_kv * t->group;
    uint32_t n_value = attention_values(t);
    size_t n = (size_t)t->n_rows * n_head * n_value;
    double *right = host_new(n * 8), *z = host_new(t->n_keys * 8);

    for (uint32_t i = 0; i < t->n_rows * n_head; i++) {
        uint32_t r = i / n_head, kv = i % n_head / t->group, end = t->n_keys - t->n_rows + r + 1;
        uint32_t n_seen = c->n_pick[r] * c->block + end % c->block;
        double sum = 0;

        for (uint32_t k = 0; k < n_seen; k++) {
            uint32_t nth = k / c->block, at = k % c->block;
            uint32_t pos = nth < c->n_pick[r] ? c->pick[(size_t)r * c->n_best + nth] * c->block + at
                                              : end / c->block * c->block + at;
            size_t from = ((size_t)pos * n_kv + kv) * dim;

            z[k] = 0;
            for (uint32_t j = 0; j < dim; j++)
                z[k] += (double)t->q[(size_t)i * dim + j] * (double)t->k[from + j];
            sum += z[k] = exp(z[k] / sqrt(dim));
            for (uint32_t j = 0; j < n_value; j++)
                right[(size_t)i * n_value + j] += z[k] * (double)t->v[from + j];
        }
        for (uint32_t j = 0; j < n_value; j++)
            right[(size_t)i * n_value + j] /= sum;
    }
    double d = csa_distance(o, right, n);
    free(right);
    free(z);
    return d;
}

/* Copies the queries to the device: all values, or of latent attention those for the values and
 * the rest apart. */
static void send_queries(struct attention *t, size_t n_queries) {
    uint32_t dim = t->shape.head_dim, n_value = attention_values(t), rest = dim - n_value;
    float *q = host_new(n_queries * n_value * 4), *turned = host_new(n_queries * rest * 4 + 4);

    for (size_t i = 0; i < n_queries; i++) {
        memcpy(q + i * n_value, t->q + i * dim, n_value * 4);
        memcpy(turned + i * rest, t->q + i * dim + n_value, rest * 4);
    }
    t->q_on = device_of(q, n_queries * n_value * 4);
    t->turned_on = device_of(turned, n_queries * rest * 4 + 4);
    free(q);
    free(turned);
}

/* @n_value: values of a latent key, 0 for other attention. */
static void check_chosen(struct page_shape shape, uint32_t n_value, uint32_t group, uint32_t block,
                         uint32_t n_best, uint32_t n_keys, uint32_t n_rows) {
    struct chosen c = {
        .t = {.shape = shape,
              .group = group,
              .n_keys = n_keys,
              .n_rows = n_rows,
              .n_value = n_value},
        .block = block,
        .n_best = n_best,
    };
    struct attention *t = &c.t;
    size_t n_kv = (size_t)n_keys * shape.n_head_kv * shape.head_dim;
    size_t n_q = (size_t)n_rows * shape.n_head_kv * group * shape.head_dim;
    float *o = host_new(n_q * 4), *one = host_new(n_q * 4);
    char name[120];

    t->q = csa_random(n_q);
    t->k = csa_random(n_kv);
    t->v = n_value ? t->k : csa_random(n_kv);
    c.pick = host_new((size_t)n_rows * n_best * 4);
    c.n_pick = host_new(n_rows * 4);
    store_keys(t);
    round_keys(t);
    send_queries(t, n_q / shape.head_dim);
    t->table_on = device_of(t->table, (n_keys + shape.page_tokens - 1) / shape.page_tokens * 4);
    c.batch = batch_of(t);
    choose_some(&c);
    attend_chosen(&c, n_rows + 1, o);
    attend_chosen(&c, 1, one);
    snprintf(name, sizeof(name), "chosen%s keys, dim %u, group %u, %u blocks of %u of %u keys%s",
             n_value ? " latent" : "", shape.head_dim, group, n_best, block, n_keys,
             name_of_pages(&shape));
    report_check(name, chosen_error(&c, o), 1.5e-3);
    check_same_bits("chosen keys of a row alone", t, one, o);
    void *const held[] = {o, one, t->q, t->k, n_value ? NULL : t->v, t->table, c.pick, c.n_pick};
    for (size_t i = 0; i < ARRAY_SIZE(held); i++)
        free(held[i]);
}

/* Cases: all sizes of blocks and all formats of pages; rows before the first complete block and at
 * the ends of blocks; numbers of keys that fill parts exactly. The limit of the error is that of
 * values and weights in half precision. */
static void check_chosen_keys(const void *arg) {
    static const uint32_t tokens[] = {16, 32, 64};
    bool tiny = *(const bool *)arg;

    open_device();
    check_mean(4, 128, 30);
    check_mean(1, 48, 0);
    check_mean(16, 16, 31);
    check_pooled(4, 128, 4, 30);
    check_pooled(2, 16, 10, 31);
    check_pooled(16, 80, 16, 14);
    check_index(4, 128, 5, 30);
    check_index(3, 32, 40, tiny ? 700 : 70000);
    check_index(4, 128, 512, tiny ? 2100 : 30000);
    const struct sparse_shape heads = {
        .n_head = 3, .dim = 48, .ratio = 1, .block = 32, .n_block = 4, .n_local = 2};
    const struct sparse_shape m3 = {
        .n_head = 4, .dim = 128, .ratio = 1, .block = 128, .n_block = 16, .n_local = 1};
    check_heads_choice(&heads, 90);
    check_heads_choice(&heads, 637);
    check_heads_choice(&m3, tiny ? 2557 : 60000);
    for (uint32_t i = 0; i < ARRAY_SIZE(pages_of) * 5; i++) {
        const struct page_shape s = {1,
                                     i % 3 ? 64 : 256,
                                     tokens[i % ARRAY_SIZE(tokens)],
                                     pages_of[i % 4].k,
                                     pages_of[i % 4].v,
                                     false};
        uint32_t block = 1u << i / 4;

        check_chosen(s, 0, 3, block, 128 / block, 200 + i, 3);
    }
    check_chosen((struct page_shape){2, 256, 16, 16, 16, false}, 0, 12, 4, tiny ? 70 : 512,
                 tiny ? 400 : 9000, tiny ? 2 : 40);
    check_chosen((struct page_shape){1, 72, 16, 16, 16, false}, 0, 20, 8, 9, 4, 4);
    for (uint32_t i = 0; i < 3; i++) {
        uint32_t bits = pages_of[i].k;

        check_chosen((struct page_shape){1, 576, 16, bits, bits, true}, 512, 20, 4, tiny ? 40 : 512,
                     tiny ? 190 : 9000, tiny ? 2 : 40);
        check_chosen((struct page_shape){1, 64, 32, bits, bits, true}, 64, 3, 2 << i, 20, 99, 3);
    }
    check_chosen((struct page_shape){1, 96, 64, 16, 16, true}, 64, 16, 16, 9, 15, 4);
}
