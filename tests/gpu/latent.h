#pragma once

/*
 * latent - checks attention to latent keys, which are also the values, against double precision,
 * and bit for bit in chunks. Part of kernels.c.
 */

/* Checks attend_latent, and on devices that can run it attend_latent_bulk, which must give the same
 * bits. */
static void check_latent(const void *arg) {
    const struct attention_case *c = arg;
    const uint32_t dim = c->shape.head_dim, n_value = dim - c->window; /* window: rotary values */
    struct attention t = {.shape = c->shape,
                          .group = c->group,
                          .n_keys = c->n_keys,
                          .n_rows = c->n_rows,
                          .n_value = n_value};
    size_t n_queries = (size_t)c->n_rows * c->group, n_q = n_queries * dim;
    size_t n_kv = (size_t)c->n_keys * dim, n = n_queries * n_value;
    float *q = host_new(n_q * 4), *turned = host_new(n_q * 4);
    float *direct = host_new(n * 4), *split = host_new(n * 4);
    static const int ways[] = {AT_ONCE, SPLIT, MANY};
    char name[100];

    open_device();
    t.q = host_new(n_q * 4);
    t.k = t.v = host_new(n_kv * 4);
    fill_floats(t.q, n_q);
    fill_floats(t.k, n_kv);
    for (size_t i = 0; i < n_queries; i++) {
        memcpy(q + i * n_value, t.q + i * dim, n_value * 4);
        memcpy(turned + i * c->window, t.q + i * dim + n_value, c->window * 4);
    }
    store_keys(&t);
    round_keys(&t);
    t.q_on = device_of(q, n * 4);
    t.turned_on = device_of(turned, n_queries * c->window * 4);
    t.table_on =
        device_of(t.table, (c->n_keys + c->shape.page_tokens - 1) / c->shape.page_tokens * 4);
    run_attention(&t, AT_ONCE, direct);
    run_attention(&t, SPLIT, split);
    snprintf(name, sizeof(name), "latent attention %u + %u, group %u, %u keys, %u rows%s", n_value,
             c->window, c->group, c->n_keys, c->n_rows, name_of_pages(&c->shape));
    report_check(name, attention_error(&t, direct, 1e-3), 1e-3);
    snprintf(name, sizeof(name), "latent attention split: same bits, group %u, %u keys", c->group,
             c->n_keys);
    report_check(name, differs(name, split, direct, c->n_rows, n / c->n_rows), 0);
    t.bulk = attend_bulk_runs(&device);
    for (size_t i = 0; i < (t.bulk ? ARRAY_SIZE(ways) : 0); i++) {
        memset(split, 0xFF, n * 4);
        run_attention(&t, ways[i], split);
        snprintf(name, sizeof(name), "attend_latent_bulk: same bits, way %zu, group %u, %u keys", i,
                 c->group, c->n_keys);
        report_check(name, differs(name, split, direct, c->n_rows, n / c->n_rows), 0);
    }
    void *const done[] = {t.q_on, t.turned_on, t.table_on, t.pages};
    for (size_t i = 0; i < ARRAY_SIZE(done); i++)
        api->release(done[i]);
    void *const held[] = {t.q, t.k, t.table, q, turned, direct, split};
    for (size_t i = 0; i < ARRAY_SIZE(held); i++)
        free(held[i]);
}

/* Cases: single rows and prompts; fewer queries than a block has, and more. The last number of a
 * case is the number of rotary values of a query. */
static void check_latents(bool tiny) {
    for (size_t p = 0; p < ARRAY_SIZE(pages_of) && pages_of[p].k == pages_of[p].v; p++) {
        uint32_t k = pages_of[p].k, v = pages_of[p].v;
        const struct attention_case cases[] = {
            {{1, 576, 16, k, v, true}, 20, 280, 2, 64},
            {{1, 96, 32, k, v, true}, 5, 513, 1, 32},
            {{1, 96, 16, k, v, true}, 5, 260, 12, 32}, /* a chunk that some rows see */
            {{1, 576, 32, k, v, true}, 20, 4000, 1, 64},
            {{1, 576, 64, k, v, true}, 64, 1030, 40, 64},
        };

        for (size_t i = 0; i < (tiny ? 3 : ARRAY_SIZE(cases)); i++) {
            char name[60];

            snprintf(name, sizeof(name), "latent attention dim %u, group %u%s",
                     cases[i].shape.head_dim, cases[i].group, pages_of[p].name);
            report_alone(name, 60, check_latent, &cases[i]);
        }
    }
}
