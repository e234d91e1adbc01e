/*
 * Tests experts that a device fetches from host memory: the bits of a device that has all experts,
 * the slots against a naive model, and calls that fail.
 */

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/archs.h"
#include "engine/cuda/kernels.h"
#include "engine/picks.h"
#include "tests/engine/cuda/fake_find.h"
#include "tests/engine/cuda/ways.h"
#include "tests/support/tiny_model.h"

enum { LAYERS = 8, EXPERTS = 40 };

/* -- the naive model --------------------------------------------------------------------------- */

/* Expected slots of a layer, which is identified by the address of its table. */
static struct layer {
    const uint32_t *table;
    /* expert in each slot; -1: none */
    int32_t slot[EXPERTS];
    /* of a slot */
    uint64_t since[EXPERTS];
} layers[LAYERS];
static uint64_t now, n_missed, n_moved, n_read_far;
static struct route_args routed;
static struct bring_args brought;

static struct layer *layer_of(const struct expert_slots *s, uint32_t n_expert) {
    struct layer *l = layers;

    while (l->table && l->table != s->slot)
        l++;
    cr_assert(l < layers + LAYERS && n_expert <= EXPERTS);
    for (uint32_t e = 0; e < n_expert && !l->table; e++)
        l->slot[e] = s->slot[e] == SLOT_HOST ? -1 : (int32_t)s->slot[e];
    l->table = s->slot;
    return l;
}

/* Returns the expert in a slot. */
static uint32_t expert_in(const struct layer *l, int32_t slot, uint32_t n_expert) {
    uint32_t e = 0;

    while (e < n_expert && l->slot[e] != slot)
        e++;
    cr_assert(e < n_expert, "slot %d is empty", slot);
    return e;
}

/* Places one expert after the other in the slot that was picked least recently, unless it has a
 * slot. */
static void move_naively(struct layer *l, const struct route_args *r) {
    uint32_t n_pairs = r->batch->n_rows * r->n_used, count[EXPERTS] = {0};

    now++;
    for (uint32_t i = 0; i < n_pairs; i++)
        count[r->expert[i]]++;
    for (uint32_t e = 0; e < r->n_expert; e++) {
        n_missed += l->slot[e] < 0 ? count[e] : 0;
        if (count[e] && l->slot[e] >= 0)
            l->since[l->slot[e]] = now;
    }
    for (uint32_t e = 0; e < r->n_expert; e++) {
        int32_t oldest = 0;

        if (!count[e] || l->slot[e] >= 0 || r->slots.n == 0)
            continue;
        for (uint32_t s = 1; s < r->slots.n; s++)
            oldest = l->since[s] < l->since[oldest] ? (int32_t)s : oldest;
        if (l->since[oldest] == now)
            continue;
        l->slot[expert_in(l, oldest, r->n_expert)] = -1;
        l->slot[e] = oldest;
        l->since[oldest] = now;
        n_moved++;
    }
}

/* Expects that each slot holds the same tiles as the host has for its expert. */
static void check_slots(const struct route_args *r, const struct bring_args *b) {
    for (uint32_t e = 0; e < r->n_expert; e++)
        for (uint32_t m = 0; m < MATMUL_MATRICES && r->slots.slot[e] != SLOT_HOST; m++)
            cr_assert(b->bytes[m] == 0 || memcmp(b->here[m] + r->slots.slot[e] * b->bytes[m],
                                                 b->host[m] + e * b->bytes[m], b->bytes[m]) == 0,
                      "expert %u", e);
}

/* on_launch: takes the choice of route() before bring(), and checks what bring() has copied after
 * it. */
static void follow(const char *kernel, uint64_t number, void *args) {
    (void)number;
    if (strcmp(kernel, "route") == 0) {
        routed = *(struct route_args *)args;
        if (routed.slots.slot)
            layer_of(&routed.slots, routed.n_expert);
    } else if (strcmp(kernel, "bring") == 0) {
        struct layer *l = layer_of(&routed.slots, routed.n_expert);

        brought = *(struct bring_args *)args;
        move_naively(l, &routed);
        for (uint32_t e = 0; e < routed.n_expert; e++)
            cr_assert((int32_t)routed.slots.slot[e] == l->slot[e], "expert %u", e);
    } else if (strncmp(kernel, "expert_", 7) == 0) {
        const struct expert_args *a = args;

        if (!a->slot)
            return;
        check_slots(&routed, &brought);
        for (uint32_t i = 0; i < *a->n_items; i++)
            n_read_far += a->slot[a->item[i].expert] == SLOT_HOST;
    }
}

static void forget(void) {
    memset(layers, 0, sizeof(layers));
    now = n_missed = n_moved = n_read_far = 0;
}

/* -- bits -------------------------------------------------------------------------------------- */

/* Digests of every row must be those of a device with all experts: of prompts and of single rows,
 * alone and in company, with graphs. */
static void check_same(const char *path, uint32_t every, bool whole) {
    int fd = ways_placed(path, every, false, whole);
    struct way ways[2] = {ways_in_batches[0], ways_in_batches[1]};

    for (size_t i = 0; i < ARRAY_SIZE(ways); i++) {
        ways[i].placed_fd = fd;
        ways[i].fetches = true;
    }
    ways_compare(path, ways, ARRAY_SIZE(ways));
    cr_expect(fake_find()->n_host_calls == 0);
    close(fd);
}

/* Gate and up; with biases; gates and ups in one tensor, in a branch; without gates. */
Test(cuda_fetched_experts, bits_are_those_of_a_device_with_all) {
    static const struct tiny_model models[] = {
        {.arch = "qwen3moe", .type = TENSOR_Q4_K, .n_ff = 512, .n_vocab = 64},
        {.arch = "gpt-oss", .type = TENSOR_MXFP4, .n_embd = 64, .n_ff = 64, .n_vocab = 64},
    };

    for (size_t i = 0; i < FEW(ARRAY_SIZE(models)); i++) {
        char path[64];

        tiny_model_temp(&models[i], path);
        check_same(path, 2, i == 1);
        unlink(path);
    }
}

Test(cuda_fetched_experts, bits_of_golden_files_are_those_of_a_device_with_all) {
    static const char *const files[] = {"gemma4-moe", "nemotron-h-moe-mtp"};

    for (size_t i = 0; i < FEW(ARRAY_SIZE(files)); i++) {
        char path[1024];

        ways_golden(files[i], path);
        check_same(path, 3, true);
    }
}

static void make_small(char path[64]) {
    const struct tiny_model m = {.arch = "qwen3moe",
                                 .type = TENSOR_Q8_0,
                                 .n_embd = 64,
                                 .n_ff = 64,
                                 .n_vocab = 64,
                                 .n_expert = 12,
                                 .n_expert_used = 3};

    tiny_model_temp(&m, path);
}

Test(cuda_fetched_experts, slots_follow_the_picks_of_a_naive_model) {
    struct way way = ways_in_batches[1];
    struct trace t = {0};
    char path[64];

    make_small(path);
    for (uint32_t alone = 0; alone < 2; alone++) {
        way.placed_fd = ways_placed(path, 2, false, !alone);
        way.fetches = true;
        way.graphs = false; /* the launches of a graph are not reported one by one */
        way.chunk = 9 - 8 * alone;
        way.n_neighbours *= 1 - alone;
        forget();
        fake_find()->on_launch = follow;
        ways_run(path, "cuda", &way, &t);
        fake_find()->on_launch = NULL;
        cr_expect(alone ? n_moved > 50 && n_read_far == 0 : n_moved > 5 && n_read_far > 0,
                  "%lu, %lu", n_moved, n_read_far);
        free(t.logits);
        close(way.placed_fd);
    }
    unlink(path);
}

/* -- failures ---------------------------------------------------------------------------------- */

static struct gguf *file;

/* Returns options with the placement file @fd. */
static struct engine_opts placed(int fd) {
    return (struct engine_opts){.file = file,
                                .backend = "cuda",
                                .isa = "auto",
                                .n_threads = 1,
                                .n_pages = 8,
                                .page_tokens = 16,
                                .max_rows = 32,
                                .max_seqs = 2,
                                .max_wants = 4,
                                .experts_fd = fd,
                                .keeps_place = true,
                                .fetches_experts = true};
}

Test(cuda_fetched_experts, picks_without_a_slot_are_counted) {
    struct engine_info info;
    struct err err = {0};
    uint32_t n_open;
    char path[64];

    make_small(path);
    cr_assert(gguf_open(&file, path, &err) == 0);
    int fd = ways_placed(path, 2, false, false);
    setenv("WEFT_CUDA_GRAPHS", "0", 1);
    forget();
    fake_find()->on_launch = follow;
    const struct engine_opts o = placed(fd);
    cr_assert(ways_try_steps(&o, PICKS_STEPS, &n_open, &info, &err) == 0, "%s", err.message);
    fake_find()->on_launch = NULL;
    cr_expect(info.n_picks == PICKS_STEPS * 2 * 3, "%lu", info.n_picks);
    cr_expect(n_missed > 0 && info.n_host_picks == n_missed, "%lu, %lu", info.n_host_picks,
              n_missed);
    gguf_free(file);
    close(fd);
    unlink(path);
}

/* Results do not depend on the placement, so it is not part of the engine's identity. A device
 * whose slots hold wrong experts is refused when it is opened. */
Test(cuda_fetched_experts, slots_are_proved) {
    struct engine_info info, all;
    struct err err = {0};
    uint32_t n_open;
    char path[64];

    make_small(path);
    cr_assert(gguf_open(&file, path, &err) == 0);
    setenv("WEFT_CUDA_CHECK", "1", 1);
    int fd = ways_placed(path, 3, false, false);
    const struct engine_opts o = placed(fd), without = placed(0);
    cr_assert(ways_try_steps(&o, 0, &n_open, &info, &err) == 0, "%s", err.message);
    cr_expect(strstr(info.note, "without") == NULL, "%s", info.note);
    cr_assert(ways_try_steps(&without, 0, &n_open, &all, &err) == 0, "%s", err.message);
    cr_expect(memcmp(info.sources, all.sources, sizeof(info.sources)) == 0);
    fake_find()->broken = "bring";
    cr_expect(ways_try_steps(&o, 0, &n_open, &info, &err) < 0 &&
                  strstr(err.message, "computes wrong results"),
              "%s", err.message);
    fake_find()->broken = NULL;
    gguf_free(file);
    close(fd);
    unlink(path);
}

Test(cuda_fetched_experts, every_call_may_fail_once) {
    struct err err = {0};
    char path[64];

    make_small(path);
    cr_assert(gguf_open(&file, path, &err) == 0);
    int fd = ways_placed(path, 2, false, false);
    const struct engine_opts o = placed(fd);
    ways_fail_calls(&o, 2);
    close(fd);
    gguf_free(file);
    unlink(path);
}
