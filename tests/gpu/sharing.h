#pragma once

/*
 * sharing - checks attention of sequences that begin with the same pages and have one row each,
 * with the items of kernel_plan: in blocks of few queries, in blocks of many queries, and each
 * sequence alone. Part of kernels.c.
 */

/* A case. The rows are the last n_seqs positions. */
struct sharing_case {
    struct page_shape shape;
    uint32_t group, n_keys, n_seqs, window;
    /* keys in common pages */
    uint32_t common;
    /* for which the items are planned */
    uint32_t n_multiprocessors;
    /* results of blocks of many queries need a merge */
    bool merges;
};

enum { SHARING_PARTIALS = 640, SHARING_ITEMS = 4096 };

/* Returns the page tables of all sequences, one after the other. After the common pages, sequences
 * with odd numbers use copies of the pages, which begin at page @n_copies. */
static uint32_t *tables_of(const struct attention *t, uint32_t common, uint32_t n_copies) {
    uint32_t tokens = t->shape.page_tokens, n = (t->n_keys + tokens - 1) / tokens;
    uint32_t *table = host_new((size_t)t->n_rows * n * sizeof(*table));

    for (uint32_t i = 0; i < t->n_rows * n; i++)
        table[i] = t->table[i % n] + (i / n % 2 && i % n >= common / tokens ? n_copies : 0);
    return table;
}

/* Computes attention of all rows to @out, in blocks of many queries in way @how. @shared:
 * plan_args.shared; 0: no page is shared. Returns the batch as kernel_plan has left it. */
static struct batch_head run_shared(const struct attention *t, const struct sharing_case *c,
                                    const uint32_t *tables_on, uint32_t shared, int how,
                                    float *out) {
    uint32_t n_kv = t->shape.n_head_kv, dim = t->shape.head_dim, n = t->n_rows, stride = dim + 4;
    uint32_t n_pages = (t->n_keys + t->shape.page_tokens - 1) / t->shape.page_tokens;
    struct plan_seq *seq = host_new(n * sizeof(*seq));
    uint32_t *pos = host_new(n * sizeof(*pos));
    size_t bytes = (size_t)n * n_kv * t->group * dim * sizeof(float);

    for (uint32_t i = 0; i < n; i++) {
        pos[i] = t->n_keys - n + i;
        seq[i] = (struct plan_seq){i, 1, pos[i], i * n_pages, 0, 0};
    }
    struct attn_item *item = device_new(SHARING_ITEMS * sizeof(*item));
    struct attn_item *wide = device_new(SHARING_ITEMS * sizeof(*wide));
    struct attn_merge *merge = device_new(SHARING_ITEMS * sizeof(*merge));
    struct batch_head head = {.n_rows = n,
                              .n_seqs = n,
                              .pos = device_of(pos, n * sizeof(*pos)),
                              .page_table = {tables_on},
                              .seq = device_of(seq, n * sizeof(*seq)),
                              .item = item,
                              .wide_item = wide,
                              .merge = merge};
    struct batch_head *batch = device_of(&head, sizeof(head));
    const struct plan_args p = {
        .batch = batch,
        .item = item,
        .wide_item = wide,
        .merge = merge,
        .group = t->group,
        .n_head_kv = n_kv,
        .n_multiprocessors = c->n_multiprocessors,
        .max_partials = SHARING_PARTIALS,
        .page_tokens = shared ? t->shape.page_tokens : 0,
        .few = ATTN_QUERIES,
        .wide = ATTN_QUERIES,
        .long_chunks = 8,
        .wide_worth = 4,
        .shared = MAX(shared, ATTN_QUERIES),
    };
    const struct attend_args a = {
        .batch = batch,
        .q = t->q_on,
        .o = device_new(bytes),
        .partial = device_new((size_t)SHARING_PARTIALS * n_kv * ATTN_QUERIES * stride * 4),
        .pages = t->pages,
        .shape = t->shape,
        .n_head = n_kv * t->group,
        .group = t->group,
        .partial_stride = stride,
        .few = ATTN_QUERIES,
        .n_value = dim,
        .scale = 1.0f / sqrtf((float)dim),
        .window = t->window ? t->window : UINT32_MAX,
        .sinks = t->window ? t->sinks_on : NULL,
    };

    launch(kernel_plan, 1, 1, CUDA_THREADS, &p, "plan");
    fetch(&head, batch, sizeof(head));
    for (int many = head.n_wide_items > 0; many >= 0; many--) {
        struct attend_kernel k = attention_kernel(t, how, many);

        must(api->launch(k.kernel, (many ? head.n_wide_items + 1 : head.n_items) / 2 + 1, n_kv,
                         CUDA_THREADS, k.shared, &a, false, stream),
             "attend");
    }
    if (head.n_merges)
        launch(kernel_merge, head.n_merges, n_kv, CUDA_THREADS, &a, "merge");
    fetch(out, a.o, bytes);
    const void *done[] = {item, wide, merge, head.pos, head.seq, batch, a.o, a.partial};
    for (size_t i = 0; i < ARRAY_SIZE(done); i++)
        api->release((void *)done[i]);
    free(seq);
    free(pos);
    return head;
}

static void check_sharing(const void *arg) {
    const struct sharing_case *c = arg;
    struct attention t = {.shape = c->shape,
                          .group = c->group,
                          .n_keys = c->n_keys,
                          .n_rows = c->n_seqs,
                          .window = c->window};
    uint32_t n_head = c->shape.n_head_kv * c->group, n_pages, *table;
    size_t n_kv = (size_t)c->n_keys * c->shape.n_head_kv * c->shape.head_dim;
    size_t n_q = (size_t)c->n_seqs * n_head * c->shape.head_dim, bytes;
    float *direct = host_new(n_q * 4), *out = host_new(n_q * 4);

    open_device();
    t.q = host_new(n_q * 4);
    t.k = host_new(n_kv * 4);
    t.v = host_new(n_kv * 4);
    t.sinks = host_new(n_head * 4);
    fill_floats(t.q, n_q);
    fill_floats(t.k, n_kv);
    fill_floats(t.v, n_kv);
    fill_floats(t.sinks, n_head);
    store_keys(&t);
    t.q_on = device_of(t.q, n_q * 4);
    t.sinks_on = device_of(t.sinks, n_head * 4);
    n_pages = (c->n_keys + c->shape.page_tokens - 1) / c->shape.page_tokens;
    t.table_on = device_of(t.table, n_pages * 4);
    run_attention(&t, AT_ONCE, direct);

    bytes = (n_pages * 8 + 1) * page_layer_bytes(&t.shape);
    uint8_t *twice = host_new(2 * bytes);
    fetch(twice, t.pages, bytes);
    memcpy(twice + bytes, twice, bytes);
    api->release(t.pages);
    t.pages = device_of(twice, 2 * bytes);
    table = tables_of(&t, c->common, n_pages * 8 + 1);
    uint32_t *tables_on = device_of(table, (size_t)c->n_seqs * n_pages * 4);
    const struct {
        uint32_t shared;
        int how;
    } ways[] = {{0, MANY}, {ATTN_QUERIES, MANY}, {ATTN_WIDE, MANY}, {ATTN_WIDE, WGMMA_MANY}};
    for (size_t i = 0; i < 3u + wgmma_attends(&t.shape); i++) {
        struct batch_head head = run_shared(&t, c, tables_on, ways[i].shared, ways[i].how, out);
        char name[100];

        snprintf(name, sizeof(name), "attention shared by %u queries%s", ways[i].shared,
                 ways[i].how == MANY ? "" : ", wgmma");
        check_same_bits(name, &t, out, direct);
        if (ways[i].shared == ATTN_WIDE)
            report_check("many queries share items as they should",
                         head.n_wide_items == 0 || (head.n_merges > 0) != c->merges, 0);
    }
    void *const done[] = {t.q_on, t.sinks_on, t.table_on, t.pages, tables_on};
    for (size_t i = 0; i < ARRAY_SIZE(done); i++)
        api->release(done[i]);
    void *const held[] = {t.q, t.k, t.v, t.sinks, t.table, direct, out, twice, table};
    for (size_t i = 0; i < ARRAY_SIZE(held); i++)
        free(held[i]);
}

/* Cases: common pages of more than one chunk; groups of sequences in several blocks; windows that
 * begin in and after the common pages; heads of a group in two blocks, whose own chunks are
 * merged. */
static void check_all_sharing(bool tiny) {
    for (size_t p = 0; p < ARRAY_SIZE(pages_of); p++) {
        uint32_t k = pages_of[p].k, v = pages_of[p].v;
        const struct sharing_case cases[] = {
            {{1, 128, 16, k, v, false}, 4, 1100, 39, 0, 1024, 5, false},
            {{1, 64, 16, k, v, false}, 5, 1340, 25, 700, 1030, 2, false},
            {{1, 64, 32, k, v, false}, 5, 1340, 25, 1070, 1030, 2, false},
            {{1, 96, 64, k, v, false}, 20, 1100, 13, 0, 1024, 14, true},
            {{8, 128, 32, k, v, false}, 4, 4096, 128, 0, 3072, 132, false},
            {{8, 128, 32, k, v, false}, 4, 5400, 48, 0, 3072, 132, true},
            {{2, 64, 16, k, v, false}, 8, 3000, 70, 900, 2500, 132, false},
        };

        for (size_t i = 0; i < (tiny ? (p ? 2 : 4) : ARRAY_SIZE(cases)); i++) {
            char name[70];

            snprintf(name, sizeof(name), "attention shared, dim %u, group %u%s%s",
                     cases[i].shape.head_dim, cases[i].group, pages_of[p].name,
                     cases[i].window ? ", window" : "");
            report_alone(name, 120, check_sharing, &cases[i]);
        }
    }
}
