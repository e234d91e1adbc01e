#pragma once

/* attention - checks the storing of keys and values in pages, and each kernel of attention, against
 * double precision. Part of kernels.c. */

/* A sequence, whose last n_rows positions have queries. Members that end in _on are on the
 * device. */
struct attention {
    struct page_shape shape;
    uint32_t group, n_keys, n_rows;
    /* 0: no window, and no sinks */
    uint32_t window;
    /* latent attention: values of a key that are its value; else 0 */
    uint32_t n_value;
    /* latent attention: uses attend_latent_bulk */
    bool bulk;
    /* k, v: [n_keys][n_head_kv][dim], rounded as in the pages by round_keys() */
    float *q, *k, *v;
    /* sinks: [heads] */
    float *q_on, *turned_on, *sinks, *sinks_on;
    uint32_t *table, *table_on;
    uint8_t *pages;
    /* of the last n_rows, not rounded; attend_decode stores them itself */
    float *k_on, *v_on;
};

/* Returns the number of values of a head's result. */
static uint32_t attention_values(const struct attention *t) {
    return t->n_value ? t->n_value : t->shape.head_dim;
}

/* Allocates the pages, and writes all keys and values with kernel_store or kernel_store_latent,
 * without RoPE and norm. */
static void store_keys(struct attention *t) {
    uint32_t n = t->n_keys, n_kv = t->shape.n_head_kv, dim = t->shape.head_dim;
    uint32_t tokens = t->shape.page_tokens, n_pages = (n + tokens - 1) / tokens;
    size_t bytes = (size_t)n * n_kv * dim * sizeof(float);
    uint32_t *page = host_new(n * 4), *slot = host_new(n * 4);
    float one[2] = {1, 0};

    t->table = host_new(n_pages * 4);
    for (uint32_t i = 0; i < n_pages; i++)
        t->table[i] = (i * 7 + 3) % (n_pages * 8 + 1); /* a different page for each i */
    for (uint32_t i = 0; i < n; i++) {
        page[i] = t->table[i / tokens];
        slot[i] = i % tokens;
    }
    size_t all = (size_t)(n_pages * 8 + 1) * page_layer_bytes(&t->shape);
    t->pages = device_new(all);
    must(api->fill(t->pages, 0, all, stream), "fill");
    struct batch_head batch = {
        .n_rows = n, .row_page = {device_of(page, n * 4)}, .row_slot = device_of(slot, n * 4)};
    struct store_args a = {
        .batch = device_of(&batch, sizeof(batch)),
        .q = device_new((size_t)n * n_kv * t->group * dim * 4),
        .k = device_of(t->k, bytes),
        .v = device_of(t->v, bytes),
        .rope = device_of(one, 8),
        .pages = t->pages,
        .shape = t->shape,
        .n_head = n_kv * t->group,
        .n_value = dim,
        .n_kv = n_kv,
        .width = dim,
    };
    if (t->n_value)
        launch(kernel_store_latent, n, (a.n_head + 8) / 8, CUDA_THREADS, &a, "store");
    else
        launch(kernel_store, n, (a.n_head + n_kv + 7) / 8, CUDA_THREADS, &a, "store");
    must(api->stream_wait(stream), "store");
    const void *done[] = {a.q, a.k, a.v, a.rope, a.batch, batch.row_page[0], batch.row_slot};
    for (size_t i = 0; i < ARRAY_SIZE(done); i++)
        api->release((void *)done[i]);
    free(page);
    free(slot);
}

/* Formats of pages that are checked. */
static const struct {
    uint32_t k, v;
    const char *name;
} pages_of[] = {{PAGE_F16, PAGE_F16, ""},
                {PAGE_Q8_0, PAGE_Q8_0, ", q8_0"},
                {PAGE_Q4_0, PAGE_Q4_0, ", q4_0"},
                {PAGE_Q8_0, PAGE_Q4_0, ", q8_0 and q4_0"}};

/* Returns the format of the pages for the name of a check. */
static const char *name_of_pages(const struct page_shape *s) {
    for (size_t i = 0; i < ARRAY_SIZE(pages_of); i++)
        if (pages_of[i].k == s->k && pages_of[i].v == s->v)
            return pages_of[i].name;
    return ", other pages";
}

/* Rounds k and v to the format of the pages. */
static void round_keys(struct attention *t) {
    size_t n = (size_t)t->n_keys * t->shape.n_head_kv * t->shape.head_dim;
    float *const both[2] = {t->k, t->v};

    for (int w = 0; w < (t->n_value ? 1 : 2); w++)
        for (size_t i = 0; i < n; i += 32) {
            uint32_t bits = PAGE_BITS(w ? t->shape.v : t->shape.k);
            float *x = both[w] + i, high = x[0], low = x[0];

            for (int j = 0; j < 32; j++) {
                high = fmaxf(high, x[j]);
                low = fminf(low, x[j]);
            }
            float max = fmaxf(high, -low), far = high >= -low ? high : low;
            float d = mx_half_to_float(mx_float_to_half(bits == 8 ? max / 127 : far / -8));
            for (int j = 0; j < 32; j++)
                x[j] = bits == 16  ? mx_half_to_float(mx_float_to_half(x[j]))
                       : bits == 8 ? d * rintf(x[j] * (127.0f / max))
                                   : d * rintf(fminf(fmaxf(x[j] * (1.0f / d), -8), 7));
        }
}

/* Ways to compute attention: an item for each block of queries; an item for each chunk of keys;
 * blocks of many queries, also by wgmma; an item for each chunk with all queries, which also stores
 * keys. */
enum { AT_ONCE, SPLIT, MANY, WGMMA_MANY, DECODE };

/* Returns the kernel for blocks of many queries in way @how, if @wide, or the kernel for what it
 * leaves. */
static struct attend_kernel attention_kernel(const struct attention *t, int how, bool wide) {
    if (wide && how == WGMMA_MANY)
        return attend_wgmma_for(&t->shape, t->bulk);
    return attend_kernel_for(&t->shape, wide, t->bulk);
}

/* Returns true if attend_wgmma computes attention of such heads here. */
static bool wgmma_attends(const struct page_shape *s) {
    return matmul_wgmma_built && device.major == 9 && !s->latent && s->head_dim <= 128;
}

/* Returns the number of chunks up to the last key that query @query sees. As in plan.cu, a block of
 * queries has no items after the last chunk that its last query sees; kernels may leave the results
 * of such items unwritten. */
static uint32_t chunks_seen(const struct attention *t, uint32_t query) {
    return (t->n_keys - t->n_rows + query / t->group) / ATTN_CHUNK + 1;
}

/* Returns true if attend_decode computes such attention. */
static bool decode_handles(const struct attention *t) {
    return !t->n_value && t->shape.head_dim <= 128 && t->n_rows <= MATVEC_ROWS &&
           t->n_rows * t->group <= DECODE_QUERIES;
}

/* Launches attend_decode with attention's argument, in place of store, whose keys in the pages are
 * first replaced by zeros. */
static void run_decode(const struct attention *t, const struct attend_args *a, uint32_t n_blocks,
                       uint32_t n_merges) {
    uint32_t n_kv = t->shape.n_head_kv, y = (a->n_head + n_kv + 7) / 8;
    size_t bytes = (size_t)t->n_rows * n_kv * t->shape.head_dim * sizeof(float);
    size_t arrived = (size_t)n_merges * n_kv * sizeof(uint32_t);
    float one[2] = {1, 0}, *zeros = device_new(bytes);
    struct attend_kernel k = attend_decode_for(&t->shape);
    struct decode_args all = {.attend = *a,
                              .store = {.batch = a->batch,
                                        .q = (float *)a->q,
                                        .k = zeros,
                                        .v = zeros,
                                        .rope = device_of(one, 8),
                                        .pages = t->pages,
                                        .shape = t->shape,
                                        .n_head = a->n_head,
                                        .n_value = t->shape.head_dim,
                                        .n_kv = n_kv},
                              .arrived = device_new(arrived)};

    must(api->fill(zeros, 0, bytes, stream), "fill");
    must(api->fill(all.arrived, 0, arrived, stream), "fill");
    launch(kernel_store, t->n_rows, y, CUDA_THREADS, &all.store, "store");
    all.store.k = t->k_on;
    all.store.v = t->v_on;
    for (uint32_t i = 0; i < 2; i++) /* the second finds the counts as the first has left them */
        must(api->launch(k.kernel, n_blocks, n_kv, CUDA_THREADS, k.shared, &all, false, stream),
             "attend_decode");
    must(api->stream_wait(stream), "attend_decode");
    api->release(zeros);
    api->release((void *)all.store.rope);
    api->release(all.arrived);
}

/* Computes attention of all queries in way @how to @out, [n_rows][heads][dim or n_value]. */
static void run_attention(struct attention *t, int how, float *out) {
    bool split = how == SPLIT || how == DECODE, many = how == MANY || how == WGMMA_MANY;
    uint32_t n_queries = t->n_rows * t->group, all = (uint32_t)round_up(n_queries, ATTN_QUERIES);
    uint32_t few = how == DECODE ? all : t->n_value ? ATTN_LATENT : ATTN_QUERIES;
    uint32_t at_once = how == DECODE ? few : attention_kernel(t, how, many).queries;
    uint32_t n_kv = t->shape.n_head_kv, dim = t->shape.head_dim, tokens = t->shape.page_tokens;
    uint32_t n_items = 0, n_merges = 0, n_partials = 0, most = chunks_seen(t, n_queries - 1);
    uint32_t n_value = attention_values(t), stride = n_value + 4;
    uint32_t n_blocks = (n_queries + ATTN_QUERIES - 1) / ATTN_QUERIES;
    struct attn_item *item = host_new(n_blocks * most * sizeof(*item));
    struct attn_merge *merge = host_new(n_blocks * sizeof(*merge));
    uint32_t *pos = host_new(3 * t->n_rows * sizeof(*pos)), *page = pos + t->n_rows;
    uint32_t *slot = page + t->n_rows;
    size_t bytes = (size_t)n_queries * n_kv * n_value * sizeof(float);

    for (uint32_t r = 0; r < t->n_rows; r++) {
        pos[r] = t->n_keys - t->n_rows + r;
        page[r] = t->table[pos[r] / tokens];
        slot[r] = pos[r] % tokens;
    }
    for (uint32_t q0 = 0; q0 < n_queries; q0 += at_once) {
        uint32_t n_q = MIN(n_queries - q0, at_once), n_chunks = chunks_seen(t, q0 + n_q - 1);

        merge[n_merges++] =
            (struct attn_merge){.q0 = q0, .n_q = n_q, .partial = n_partials, .n_chunks = n_chunks};
        for (uint32_t c = 0; c < (split ? n_chunks : 1); c++)
            item[n_items++] = (struct attn_item){.pos0 = t->n_keys - t->n_rows,
                                                 .q0 = q0,
                                                 .n_q = n_q,
                                                 .chunk = split ? (int32_t)c : -1,
                                                 .n_run = split,
                                                 .partial = n_partials++,
                                                 .n_chunks = n_chunks,
                                                 .merge = n_merges - 1,
                                                 .n_merges = 1};
    }
    uint32_t n_wide = many && attention_kernel(t, how, true).leaves ? n_items : 0;
    if (n_wide && item[n_wide - 1].n_q <= few) /* a last block of few queries is not a wide item */
        n_wide--;
    struct batch_head batch = {
        .n_rows = t->n_rows,
        .n_items = n_items - n_wide,
        .n_wide_items = n_wide,
        .n_merges = n_merges,
        .item = device_of(item + n_wide, (n_items - n_wide) * sizeof(*item)),
        .wide_item = device_of(item, n_wide * sizeof(*item)),
        .merge = device_of(merge, n_merges * sizeof(*merge)),
        .page_table = {t->table_on},
        .pos = device_of(pos, t->n_rows * 4),
        .row_page = {device_of(page, t->n_rows * 4)},
        .row_slot = device_of(slot, t->n_rows * 4),
    };
    struct attend_args a = {
        .batch = device_of(&batch, sizeof(batch)),
        .q = t->q_on,
        .o = device_new(bytes),
        .partial = device_new((size_t)n_partials * n_kv * few * stride * 4),
        .pages = t->pages,
        .shape = t->shape,
        .n_head = n_kv * t->group,
        .group = t->group,
        .partial_stride = stride,
        .few = few,
        .n_value = n_value,
        .turned = t->turned_on,
        .turned_stride = dim - n_value,
        .scale = 1.0f / sqrtf((float)dim),
        .window = t->window ? t->window : UINT32_MAX,
        .sinks = t->window ? t->sinks_on : NULL,
    };

    if (how == DECODE)
        run_decode(t, &a, (n_items + 1) / 2, n_merges);
    for (int wide = many; wide >= 0 && how != DECODE; wide--) {
        struct attend_kernel k = attention_kernel(t, how, wide);

        must(api->launch(k.kernel, split ? (n_items + 1) / 2 : n_items + 3, n_kv, CUDA_THREADS,
                         k.shared, &a, false, stream),
             "attend");
        if (!k.leaves)
            break;
    }
    if (how == SPLIT)
        launch(kernel_merge, (n_merges + 1) / 2, n_kv, CUDA_THREADS, &a, "merge");
    fetch(out, a.o, bytes);
    api->release(a.o);
    api->release(a.partial);
    api->release((void *)a.batch);
    api->release((void *)batch.item);
    api->release((void *)batch.wide_item);
    api->release((void *)batch.pos);
    api->release((void *)batch.row_page[0]);
    api->release((void *)batch.row_slot);
    free(pos);
    api->release((void *)batch.merge);
    free(item);
    free(merge);
}

/* Returns |o - right| / |right|, where right is computed in double precision; describes the worst
 * values if that is more than @limit. */
static double attention_error(const struct attention *t, const float *o, double limit) {
    uint32_t n_kv = t->shape.n_head_kv, dim = t->shape.head_dim, n_head = n_kv * t->group;
    uint32_t n_value = attention_values(t);
    double *p = host_new(t->n_keys * sizeof(double)), d = 0, norm = 0;
    size_t n_values = (size_t)t->n_rows * n_head * n_value;
    float *right = host_new(n_values * sizeof(*right));

    for (uint32_t r = 0; r < t->n_rows; r++)
        for (uint32_t h = 0; h < n_head; h++) {
            const float *q = t->q + ((size_t)r * n_head + h) * dim;
            uint32_t n = t->n_keys - t->n_rows + r + 1;
            uint32_t first = t->window && n > t->window ? n - t->window : 0;
            double max = t->window ? (double)t->sinks[h] : -1e30, sum = 0;

            for (uint32_t i = first; i < n; i++) {
                const float *k = t->k + ((size_t)i * n_kv + h / t->group) * dim;

                p[i] = 0;
                for (uint32_t j = 0; j < dim; j++)
                    p[i] += (double)q[j] * (double)k[j] / sqrt(dim);
                max = fmax(max, p[i]);
            }
            for (uint32_t i = first; i < n; i++)
                sum += p[i] = exp(p[i] - max);
            sum += t->window ? exp((double)t->sinks[h] - max) : 0;
            for (uint32_t j = 0; j < n_value; j++) {
                double x = 0;

                for (uint32_t i = first; i < n; i++)
                    x += p[i] / sum * (double)t->v[((size_t)i * n_kv + h / t->group) * dim + j];
                d += pow(x - (double)o[((size_t)r * n_head + h) * n_value + j], 2);
                norm += x * x;
                right[((size_t)r * n_head + h) * n_value + j] = (float)x;
            }
        }
    if (!(sqrt(d / norm) <= limit))
        describe_worst(o, right, n_values, (size_t)n_head * n_value, sqrt(norm / (double)n_values));
    free(right);
    free(p);
    return sqrt(d / norm);
}

/* Checks that rows @o have the bits of @direct. */
static void check_same_bits(const char *what, const struct attention *t, const float *o,
                            const float *direct) {
    char name[100];

    snprintf(name, sizeof(name), "%s: same bits, dim %u, %u keys", what, t->shape.head_dim,
             t->n_keys);
    report_check(name,
                 differs(name, o, direct, t->n_rows,
                         (size_t)t->shape.n_head_kv * t->group * attention_values(t)),
                 0);
}

/* Checks the error of attention AT_ONCE, and that the other ways have its bits. */
static void check_attention(struct page_shape shape, uint32_t group, uint32_t n_keys,
                            uint32_t n_rows, uint32_t window) {
    struct attention t = {
        .shape = shape, .group = group, .n_keys = n_keys, .n_rows = n_rows, .window = window};
    size_t n_kv = (size_t)n_keys * shape.n_head_kv * shape.head_dim;
    size_t n_q = (size_t)n_rows * shape.n_head_kv * group * shape.head_dim;
    float *direct = host_new(n_q * 4), *split = host_new(n_q * 4), *wide = host_new(n_q * 4);
    char name[100];

    t.q = host_new(n_q * 4);
    t.k = host_new(n_kv * 4);
    t.v = host_new(n_kv * 4);
    fill_floats(t.q, n_q);
    fill_floats(t.k, n_kv);
    fill_floats(t.v, n_kv);
    t.sinks = host_new(shape.n_head_kv * group * 4);
    fill_floats(t.sinks, shape.n_head_kv * group);
    t.sinks_on = device_of(t.sinks, shape.n_head_kv * group * 4);
    store_keys(&t);
    size_t own = (size_t)n_rows * shape.n_head_kv * shape.head_dim;
    t.k_on = device_of(t.k + n_kv - own, own * 4);
    t.v_on = device_of(t.v + n_kv - own, own * 4);
    round_keys(&t);
    t.q_on = device_of(t.q, n_q * 4);
    t.table_on = device_of(t.table, (n_keys + shape.page_tokens - 1) / shape.page_tokens * 4);
    run_attention(&t, AT_ONCE, direct);
    run_attention(&t, SPLIT, split);
    run_attention(&t, MANY, wide);
    snprintf(name, sizeof(name), "attention dim %u, group %u, %u keys, %u rows%s%s", shape.head_dim,
             group, n_keys, n_rows, name_of_pages(&shape), window ? ", window, sinks" : "");
    report_check(name, attention_error(&t, direct, 1e-3), 1e-3);
    check_same_bits("attention split", &t, split, direct);
    check_same_bits("attention wide", &t, wide, direct);
    if (wgmma_attends(&shape)) {
        run_attention(&t, WGMMA_MANY, wide);
        check_same_bits("attend_wgmma", &t, wide, direct);
    }
    if (decode_handles(&t)) {
        run_attention(&t, DECODE, split);
        check_same_bits("attend_decode", &t, split, direct);
    }
    api->release(t.k_on);
    api->release(t.v_on);
    api->release(t.q_on);
    api->release(t.sinks_on);
    api->release(t.table_on);
    api->release(t.pages);
    free(t.sinks);
    free(t.q);
    free(t.k);
    free(t.v);
    free(t.table);
    free(direct);
    free(split);
    free(wide);
}

struct attention_case {
    struct page_shape shape;
    uint32_t group, n_keys, n_rows, window;
};

static void check_attention_case(const void *arg) {
    const struct attention_case *c = arg;

    open_device();
    check_attention(c->shape, c->group, c->n_keys, c->n_rows, c->window);
}

/* Checks that values at and beyond the range of half precision stay finite in pages of 8 or 4
 * bits. */
static void check_large_values(const void *arg) {
    uint32_t bits = *(const uint32_t *)arg;
    struct attention t = {
        .shape = {1, 64, 16, bits, bits, false}, .group = 2, .n_keys = 40, .n_rows = 2};
    size_t n_kv = (size_t)t.n_keys * 64, n_q = (size_t)t.n_rows * t.group * 64;
    float *o = host_new(n_q * 4);
    double worst = 0;

    open_device();
    t.q = host_new(n_q * 4);
    t.k = host_new(n_kv * 4);
    t.v = host_new(n_kv * 4);
    fill_floats(t.q, n_q);
    fill_floats(t.k, n_kv);
    for (size_t i = 0; i < n_kv; i++)
        t.v[i] = i % 64 < 32 ? 65504.0f : -1e9f;
    store_keys(&t);
    t.q_on = device_of(t.q, n_q * 4);
    t.table_on = device_of(t.table, (t.n_keys + 15) / 16 * 4);
    run_attention(&t, AT_ONCE, o);
    for (size_t i = 0; i < n_q; i++) {
        double d = fabs((double)o[i] / (i % 64 < 32 ? 65504.0 : -65504.0) - 1);

        worst = d <= worst ? worst : d; /* NaN counts as the worst */
    }
    report_check(bits == 8 ? "q8_0 pages keep the largest values finite"
                           : "q4_0 pages keep the largest values finite",
                 worst, 1e-3);
    void *const done[] = {t.q_on, t.table_on, t.pages};
    for (size_t i = 0; i < ARRAY_SIZE(done); i++)
        api->release(done[i]);
    void *const held[] = {t.q, t.k, t.v, t.table, o};
    for (size_t i = 0; i < ARRAY_SIZE(held); i++)
        free(held[i]);
}

static void check_attentions(bool tiny) {
    static const uint32_t few_bits[] = {8, 4};

    report_alone("large values, q8_0", 60, check_large_values, &few_bits[0]);
    report_alone("large values, q4_0", 60, check_large_values, &few_bits[1]);
    for (size_t p = 0; p < ARRAY_SIZE(pages_of); p++) {
        uint32_t k = pages_of[p].k, v = pages_of[p].v;
        const struct attention_case cases[] = {
            {{2, 64, 16, k, v, false}, 2, 300, 3, 0},
            {{1, 128, 32, k, v, false}, 4, tiny ? 300 : 3000, tiny ? 21 : 5, 0},
            /* attend_decode computes 45 queries in three turns and stores keys of two chunks */
            {{2, 128, 32, k, v, false}, 5, 517, 9, 0},
            /* the window of some rows begins after the first chunk; all rows see some tiles */
            {{1, 64, 16, k, v, false}, 3, 300, 9, 39},
            /* groups of 64 queries begin and end at different tiles */
            {{1, 128, 16, k, v, false}, 4, 300, 33, 39},
            {{1, 512, 16, k, v, false}, 2, tiny ? 280 : 1100, 3, 0},
            {{2, 256, 16, k, v, false}, 3, tiny ? 280 : 700, tiny ? 18 : 27, 0},
            {{1, 320, 32, k, v, false}, 2, 280, 23, 0},
            {{2, 128, 64, k, v, false}, 8, 1025, 40, 0},
            {{1, 96, 32, k, v, false}, 20, 513, 2, 0},
            {{8, 64, 32, k, v, false}, 8, 4000, 70, 128},
            {{1, 64, 64, k, v, false}, 8, 4000, 1, 128},
            {{2, 128, 32, k, v, false}, 4, 1030, 40, 600},
            {{1, 256, 32, k, v, false}, 4, 800, 5, 100},
        };

        for (size_t i = 0; i < (tiny ? 8 : ARRAY_SIZE(cases)); i++) {
            char name[60];

            snprintf(name, sizeof(name), "attention dim %u, group %u%s%s", cases[i].shape.head_dim,
                     cases[i].group, pages_of[p].name, cases[i].window ? ", window" : "");
            report_alone(name, 60, check_attention_case, &cases[i]);
        }
    }
}
