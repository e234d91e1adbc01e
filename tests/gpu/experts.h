#pragma once

/*
 * experts - checks the kernels of mixtures of experts: the picks against engine/experts.c, bit for
 * bit; the lists and items of rows; and the products against those of the same rows by matmul_wide,
 * bit for bit. Part of kernels.c.
 */

#include "engine/experts.h"
#include "tests/gpu/matrices.h"

struct route_case {
    uint32_t n_rows, n_expert, n_used, columns;
    uint32_t n_group, n_group_used;
    enum gating gating;
    bool normalize, bias;
};

/* Returns random logits with ties, infinities and NaN. */
static float *make_logits(const struct route_case *c) {
    size_t n = (size_t)c->n_rows * c->n_expert;
    float *l = host_new(n * sizeof(*l));

    for (size_t i = 0; i < n; i++)
        l[i] = i % 5 ? gauss() : rintf(gauss());
    l[0] = -0.0f;
    l[1] = 0.0f;
    for (uint32_t e = 0; e < c->n_expert && c->n_rows > 2; e++)
        l[c->n_expert + e] = e % 3 ? -INFINITY : NAN;
    return l;
}

/* Returns the number of errors in the lists and items: each pair of a row and a pick must be in one
 * item, which belongs to its expert. */
static uint32_t wrong_items(const struct route_case *c, const uint32_t *expert,
                            const uint32_t *list, const struct expert_item *item, uint32_t n) {
    uint32_t wrong = 0, n_pairs = c->n_rows * c->n_used;
    uint8_t *seen = host_new(n_pairs);

    for (uint32_t i = 0; i < n; i++) {
        bool right = item[i].expert < c->n_expert && item[i].n > 0 && item[i].n <= c->columns &&
                     item[i].first + item[i].n <= c->n_rows;

        wrong += !right;
        for (uint32_t k = 0; right && k < item[i].n; k++) {
            uint32_t entry = list[(size_t)item[i].expert * c->n_rows + item[i].first + k];
            uint32_t pair = entry / ROUTE_PICKS * c->n_used + entry % ROUTE_PICKS;

            wrong += pair >= n_pairs || seen[pair]++ || expert[pair] != item[i].expert;
        }
    }
    for (uint32_t p = 0; p < n_pairs; p++)
        wrong += !seen[p];
    free(seen);
    return wrong;
}

static void check_route(const struct route_case *c) {
    static const char *const gatings[] = {"", ", sigmoid", ", root", ", masked"};
    uint32_t n_pairs = c->n_rows * c->n_used, most = n_pairs, n_items, wrong = 0;
    size_t n_list = (size_t)c->n_expert * c->n_rows;
    float *logits = make_logits(c), *bias = host_new(c->n_expert * 4);
    float *weight = host_new(n_pairs * 4);
    uint32_t *expert = host_new(n_pairs * 4), *list = host_new(n_list * 4);
    struct expert_item *item = host_new(most * sizeof(*item));
    struct expert_pick right[ROUTE_PICKS];
    struct batch_head batch = {.n_rows = c->n_rows};
    const struct expert_rule rule = {.n = c->n_expert,
                                     .n_used = c->n_used,
                                     .scale = 1.5f,
                                     .gating = c->gating,
                                     .normalize = c->normalize,
                                     .n_group = c->n_group,
                                     .n_group_used = c->n_group_used,
                                     .bias = c->bias ? bias : NULL};
    char name[80];

    for (uint32_t e = 0; e < c->n_expert; e++)
        bias[e] = gauss() * 0.1f;
    struct route_args a = {
        .batch = device_of(&batch, sizeof(batch)),
        .logits = device_of(logits, (size_t)c->n_rows * c->n_expert * 4),
        .bias = c->bias ? device_of(bias, c->n_expert * 4) : NULL,
        .n_expert = c->n_expert,
        .n_used = c->n_used,
        .columns = c->columns,
        .gating = c->gating,
        .normalize = c->normalize,
        .n_group = c->n_group,
        .n_group_used = c->n_group_used,
        .in_scale = 1,
        .scale = rule.scale,
        .expert = device_new(n_pairs * 4),
        .weight = device_new(n_pairs * 4),
        .list = device_new(n_list * 4),
        .stride = c->n_rows,
        .count = device_new((c->n_expert + 1) * 4),
        .item = device_new(most * sizeof(*item)),
        .n_items = device_new(4),
    };
    must(api->fill(a.count, 0, (c->n_expert + 1) * 4, stream), "fill");
    for (int again = 0; again < 2; again++) /* the first launch must leave the counts zero */
        launch(kernel_route, (c->n_rows + 9) / ROUTE_ROWS + 1, 1, CUDA_THREADS, &a, "route");
    fetch(expert, a.expert, n_pairs * 4);
    fetch(weight, a.weight, n_pairs * 4);
    fetch(list, a.list, n_list * 4);
    fetch(item, a.item, most * sizeof(*item));
    fetch(&n_items, a.n_items, 4);
    for (uint32_t r = 0; r < c->n_rows; r++) {
        experts_pick(logits + (size_t)r * c->n_expert, &rule, right);
        for (uint32_t k = 0; k < c->n_used; k++)
            wrong += right[k].expert != expert[r * c->n_used + k] ||
                     mx_bits_of(right[k].weight) != mx_bits_of(weight[r * c->n_used + k]);
    }
    snprintf(name, sizeof(name), "picks of %u rows, %u of %u experts, %u of %u groups%s%s",
             c->n_rows, c->n_used, c->n_expert, c->n_group_used, c->n_group, gatings[c->gating],
             c->normalize ? "" : ", unnormed");
    report_check(name, wrong, 0);
    wrong = n_items > most ? n_items : wrong_items(c, expert, list, item, n_items);
    snprintf(name, sizeof(name), "items of %u rows, %u of %u experts", c->n_rows, c->n_used,
             c->n_expert);
    report_check(name, wrong, 0);
    void *const on[] = {(void *)a.batch, (void *)a.logits, (void *)a.bias, a.expert, a.weight,
                        a.list,          a.count,          a.item,         a.n_items};
    void *const here[] = {logits, bias, weight, expert, list, item};
    for (size_t i = 0; i < ARRAY_SIZE(on); i++)
        if (on[i])
            api->release(on[i]);
    for (size_t i = 0; i < ARRAY_SIZE(here); i++)
        free(here[i]);
}

/* Pairs of rows and their n_used picks: all rows pick expert 1 first, then other experts in
 * turn. */
struct mixture {
    uint32_t n_rows, n_used, n_expert;
    /* [n_expert][n_rows], on the device */
    uint32_t *list;
    /* on the device */
    struct expert_item *item;
    uint32_t *n_items, most;
};

/* Returns the expert of a pair. */
static uint32_t picked(const struct mixture *m, uint32_t pair) {
    uint32_t r = pair / m->n_used, k = pair % m->n_used;

    return k == 0 ? 1 : (2 + (r + k) % (m->n_expert - 1)) % m->n_expert;
}

static struct mixture make_mixture(uint32_t n_rows, uint32_t n_used, uint32_t n_expert,
                                   uint32_t columns) {
    struct mixture m = {.n_rows = n_rows, .n_used = n_used, .n_expert = n_expert};
    uint32_t *list = host_new((size_t)n_expert * n_rows * 4), *count = host_new(n_expert * 4);
    struct expert_item *item = host_new(n_rows * n_used * sizeof(*item));
    uint32_t n = 0;

    for (uint32_t p = n_rows * n_used; p-- > 0;) { /* the order in a list does not matter */
        uint32_t e = picked(&m, p);

        list[e * n_rows + count[e]++] = p / n_used * ROUTE_PICKS + p % n_used;
    }
    for (uint32_t e = 0; e < n_expert; e++)
        for (uint32_t first = 0; first < count[e]; first += columns)
            item[n++] = (struct expert_item){e, first, MIN(count[e] - first, columns)};
    m.most = n + 2; /* a grid may have more blocks than there are items */
    m.list = device_of(list, (size_t)n_expert * n_rows * 4);
    m.item = device_of(item, n * sizeof(*item));
    m.n_items = device_of(&n, 4);
    free(list);
    free(count);
    free(item);
    return m;
}

static void drop_mixture(struct mixture *m) {
    api->release(m->list);
    api->release(m->item);
    api->release(m->n_items);
}

/* Kernels: expert_wide, or expert_vec with teams of 1, 2 or 4 warps. */
enum expert_way { EXPERTS_MANY, TEAMS_OF_ONE, TEAMS_OF_TWO, TEAMS_OF_FOUR };

/* Multiplies the rows of all pairs: out[pair][n_out]. @w: the matrices of all experts, one after
 * the other. */
static void run_experts(const struct weights_on *w, const struct inputs *in,
                        const struct mixture *m, uint32_t n_out, enum expert_way way, float *out) {
    size_t bytes = (size_t)m->n_rows * m->n_used * n_out * 4;
    struct expert_args a = {.m = {w->m},
                            .x = in->packed,
                            .scale = in->scale,
                            .n_mats = 1,
                            .n_blocks = (w->n_in + 63) / 64 * 4,
                            .n_used = m->n_used,
                            .item = m->item,
                            .n_items = m->n_items,
                            .list = m->list,
                            .stride = m->n_rows,
                            .settled = way == TEAMS_OF_TWO}; /* the list has been uploaded */

    a.m[0].y = device_new(bytes);
    a.m[0].n_out = n_out;
    a.m[0].n_row_tiles = n_out / TILE_ROWS;
    if (way == EXPERTS_MANY) {
        must(api->launch(kernel_expert_wide, m->most, (a.m[0].n_row_tiles + 7) / 8, CUDA_THREADS,
                         wide_shared(w->m.format), &a, false, stream),
             "expert_wide");
    } else {
        expert_cut_rows(&a, way == TEAMS_OF_ONE ? 4 : way == TEAMS_OF_TWO ? 2 : 1);
        must(api->launch(kernel_expert_vec, 3, 1, EXPERT_THREADS, expert_shared(a.stage_bytes), &a,
                         false, stream),
             "expert_vec");
    }
    fetch(out, a.m[0].y, bytes);
    api->release(a.m[0].y);
}

enum { USED = 2, EXPERTS = 5 };

static void check_experts_of(const struct weights_on *w, const char *what, uint32_t n_rows) {
    uint32_t n_out = w->m.n_out / EXPERTS;
    struct inputs in = make_inputs(n_rows, w->n_in, 0);
    size_t n = (size_t)n_rows * USED * n_out;
    float *all = host_new((size_t)n_rows * n_out * EXPERTS * 4), *right = host_new(n * 4);
    float *got = host_new(n * 4);
    char name[100];

    multiply(w, &in, n_rows, WIDE, all); /* multiplies every row by every expert */
    for (int way = EXPERTS_MANY; way <= TEAMS_OF_FOUR; way++) {
        static const char *const names[] = {"expert_wide", "expert_vec by 1", "expert_vec by 2",
                                            "expert_vec by 4"};
        struct mixture m =
            make_mixture(n_rows, USED, EXPERTS, way == EXPERTS_MANY ? MATMUL_COLUMNS : EXPERT_ROWS);

        for (uint32_t p = 0; p < n_rows * USED; p++)
            memcpy(right + (size_t)p * n_out,
                   all + ((size_t)(p / USED) * EXPERTS + picked(&m, p)) * n_out, n_out * 4);
        run_experts(w, &in, &m, n_out, (enum expert_way)way, got);
        snprintf(name, sizeof(name), "%s = wide, %s %ux%u, %u rows", names[way], what, n_out,
                 w->n_in, n_rows);
        report_check(name, differs(name, got, right, n_rows * USED, n_out), 0);
        drop_mixture(&m);
    }
    drop_inputs(&in);
    free(all);
    free(right);
    free(got);
}

static void check_experts(enum tensor_type type, uint32_t n_out, uint32_t n_in, uint32_t n_rows) {
    struct weights_on w = make_weights(type, n_out * EXPERTS, n_in);

    check_experts_of(&w, tensor_format((uint32_t)type)->name, n_rows);
    drop_weights(&w);
}

/* Matrices of groups, whose products with all rows check_groups() compares. */
static void check_groups_of_experts(void) {
    struct weights_on w = make_groups(TILE_G4, 32 * EXPERTS, 576);

    check_experts_of(&w, "groups", 11);
    drop_weights(&w);
}

/* Cases: groups of many experts, of two and of one; more groups than a warp has lanes; matrices of
 * one, three and eight segments; one item and several items for an expert. */
static void check_expert_kernels(const void *arg) {
    static const struct route_case cases[] = {
        {20, 7, 3, 8, 0, 0, GATING_SOFTMAX, true, false},
        {1, 128, 8, 8, 0, 0, GATING_SOFTMAX, true, false},
        {13, 128, 8, 64, 0, 0, GATING_SOFTMAX, false, false},
        {9, 40, 6, 8, 0, 0, GATING_SIGMOID, true, true},
        {70, 300, 4, 64, 0, 0, GATING_SIGMOID, false, true},
        {3, 1024, 32, 8, 0, 0, GATING_SOFTMAX, true, true},
        {9, 256, 8, 8, 8, 4, GATING_SIGMOID, true, true},
        {5, 12, 3, 8, 3, 1, GATING_SOFTMAX, true, false},
        {4, 128, 9, 8, 64, 7, GATING_SIGMOID, false, true},
        {40, 60, 4, 64, 60, 5, GATING_SOFTMAX, false, false},
        {3, 1023, 32, 8, 33, 32, GATING_SIGMOID, true, false},
        {21, 16, 2, 8, 0, 0, GATING_MASKED, false, false},
        {5, 70, 6, 64, 0, 0, GATING_MASKED, true, false},
    };
    bool tiny = *(const bool *)arg;

    open_device();
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
        check_route(&cases[i]);
    check_experts(TENSOR_Q4_K, 48, 768, 11);
    check_experts(TENSOR_Q8_0, 16, 96, 70);
    check_experts(TENSOR_Q6_K, 32, 256, 3);
    check_experts(TENSOR_F16, 48, 576, 9);
    check_experts(TENSOR_MXFP4, 32, 320, 5);
    check_experts(TENSOR_IQ2_XS, 48, 768, 11);
    check_experts(TENSOR_IQ3_XXS, 16, 512, 9);
    check_groups_of_experts();
    if (tiny)
        return;
    check_experts(TENSOR_Q4_K, 768, 2048, 1);
    check_experts(TENSOR_Q4_K, 768, 2048, 300);
    check_experts(TENSOR_Q6_K, 2048, 768, 40);
    check_experts(TENSOR_IQ4_XS, 1536, 2048, 33);
    check_experts(TENSOR_MXFP4, 2880, 2880, 1);
    check_experts(TENSOR_MXFP4, 2880, 2880, 100);
}
