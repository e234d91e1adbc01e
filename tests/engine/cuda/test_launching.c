/* Tests how a step is launched and awaited: the trigger that lets the next kernel start, dry runs,
 * and the host's sleep before it polls (engine/cuda/pace.h). None may change a bit. */

#include <criterion/criterion.h>
#include <time.h>
#include <unistd.h>

#include "engine/cuda/pace.h"
#include "tests/engine/cuda/fake_find.h"
#include "tests/engine/cuda/ways.h"
#include "tests/support/tiny_model.h"

static uint64_t n_slept;
static int64_t slept_ns;
/* how much longer than asked a sleep takes */
static int64_t late_ns;

/* Replaces the function of the C library, also for the module. */
int nanosleep(const struct timespec *t, struct timespec *left) {
    struct timespec to = *t;

    (void)left;
    cr_assert(to.tv_sec == 0 && to.tv_nsec > 0, "a sleep of %ld s", (long)to.tv_sec);
    n_slept++;
    slept_ns += to.tv_nsec;
    to.tv_nsec += late_ns;
    return clock_nanosleep(CLOCK_MONOTONIC, 0, &to, NULL);
}

/* A way of launching; the environment of be.ways and be.graphs. */
struct launching {
    const char *name, *early, *trigger, *pace;
    bool graphs;
    uint64_t order;
};

static void launching_run(const char *path, const struct launching *l, struct trace *t) {
    const struct way way = {
        .chunk = 24, .n_neighbours = 1, .graphs = l->graphs, .order = l->order, .fuse = "1"};

    setenv("WEFT_CUDA_EARLY", l->early, 1);
    setenv("WEFT_CUDA_TRIGGER", l->trigger, 1);
    setenv("WEFT_CUDA_PACE", l->pace, 1);
    fake_find()->n_early = fake_find()->n_late = fake_find()->n_launches = 0;
    n_slept = 0;
    slept_ns = 0;
    ways_run(path, "cuda", &way, t);
}

static void launching_same(const struct trace *a, const struct trace *b, const char *name) {
    for (uint32_t r = 0; r + 1 < LONGEST; r++) {
        cr_assert(a->at[r].digest == b->at[r].digest, "%s: logits at position %u", name, r);
        cr_assert(a->at[r].token == b->at[r].token, "%s: token at position %u", name, r);
    }
}

static void launching_model(uint32_t n_embd, char path[64]) {
    tiny_model_temp(&(struct tiny_model){.arch = "qwen3",
                                         .type = TENSOR_Q4_K,
                                         .n_layer = 1,
                                         .head_dim = 64,
                                         .n_embd = n_embd,
                                         .n_head = 4,
                                         .n_head_kv = 2},
                    path);
}

Test(launching, the_trigger_changes_no_bit) {
    static const struct launching ways[] = {
        {"one after the other", "0", "1", "0", false, 0},
        {"triggered first", "1", "1", "0", false, 0},
        {"triggered late", "1", "0", "0", false, 0},
        {"triggered late, as graphs, another order of threads", "1", "0", "0", true, 77},
    };
    struct trace first = {0};
    char path[64];

    launching_model(256, path);
    for (size_t i = 0; i < ARRAY_SIZE(ways); i++) {
        bool early = *ways[i].early == '1', late = *ways[i].trigger == '0';
        struct trace t = {0};

        launching_run(path, &ways[i], i ? &t : &first);
        const struct fake_cuda *fake = fake_find();
        cr_expect((fake->n_early > 0) == early, "%s: %u early", ways[i].name,
                  (unsigned)fake->n_early);
        cr_expect(fake->n_late == (late ? fake->n_launches : 0), "%s: %u of %u late", ways[i].name,
                  (unsigned)fake->n_late, (unsigned)fake->n_launches);
        if (i)
            launching_same(&first, &t, ways[i].name);
        free(t.logits);
    }
    free(first.logits);
    unlink(path);
}

/* Launches of kernels with a dry run and without. */
static uint64_t n_dry, n_few, n_dry_packs, n_packs;

static void launching_count(const char *kernel, uint64_t number, void *args) {
    (void)number;
    (void)args;
    n_dry += strcmp(kernel, "matvec_dry") == 0 || strcmp(kernel, "matvec_16_dry") == 0;
    n_few += strcmp(kernel, "matvec") == 0 || strcmp(kernel, "matvec_16") == 0;
    n_dry_packs += strcmp(kernel, "pack_dry") == 0;
    n_packs += strcmp(kernel, "pack") == 0;
}

/* Norms have 768 columns, which pack_dry packs twice; attention's output has 256, too few for
 * that. */
Test(launching, a_dry_run_changes_no_bit) {
    static const struct launching ways[] = {
        {"without a dry run", "0", "1", "0", false, 0},
        {"dry", "0", "1", "0", false, 0},
        {"dry, early", "1", "1", "0", false, 0},
        {"dry, early, as graphs, another order of threads", "1", "1", "0", true, 77},
    };
    struct trace first = {0};
    char path[64];

    launching_model(768, path);
    fake_find()->on_launch = launching_count;
    for (size_t i = 0; i < ARRAY_SIZE(ways); i++) {
        struct trace t = {0};

        n_dry = n_few = n_dry_packs = n_packs = 0;
        setenv("WEFT_CUDA_DRY", i ? "1" : "0", 1);
        launching_run(path, &ways[i], i ? &t : &first);
        cr_expect(i ? n_dry > 0 && n_few == 0 : n_dry == 0 && n_few > 0, "%s: %u, %u", ways[i].name,
                  (unsigned)n_dry, (unsigned)n_few);
        cr_expect(i ? n_dry_packs > 0 && n_packs == 0 : n_dry_packs == 0 && n_packs > 0,
                  "%s: %u, %u", ways[i].name, (unsigned)n_dry_packs, (unsigned)n_packs);
        if (i)
            launching_same(&first, &t, ways[i].name);
        free(t.logits);
    }
    fake_find()->on_launch = NULL;
    unsetenv("WEFT_CUDA_DRY");
    free(first.logits);
    unlink(path);
}

/* The emulated kernels run while the host polls, so that steps take longer than PACE_LEAST_NS. */
Test(launching, the_host_sleeps_for_steps_with_graphs) {
    static const struct launching ways[] = {
        {"polled", "0", "1", "0", true, 0},
        {"paced", "0", "1", "1", true, 0},
        {"paced, without graphs", "0", "1", "1", false, 0},
        {"paced, overslept", "0", "1", "1", true, 0},
    };
    struct trace first = {0};
    char path[64];

    launching_model(256, path);
    for (size_t i = 0; i < ARRAY_SIZE(ways); i++) {
        struct trace t = {0};

        late_ns = i == 3 ? 5000000 : 0;
        launching_run(path, &ways[i], i ? &t : &first);
        /* cuda_wait_event() also sleeps, for 50 us, while a step takes longer than 2 ms */
        bool sleeps = slept_ns > (int64_t)n_slept * 50000;
        cr_expect(sleeps == (i % 2 == 1), "%s: %llu ns in %llu sleeps", ways[i].name,
                  (long long)slept_ns, (unsigned long long)n_slept);
        if (i)
            launching_same(&first, &t, ways[i].name);
        free(t.logits);
    }
    free(first.logits);
    unlink(path);
}

#define MS 1000000

Test(launching, a_sleep_ends_before_the_step) {
    /* nine tenths of 10 ms from its start, less what has passed */
    cr_expect_eq(pace_sleep(10 * MS, 100 * MS, 100 * MS), 9 * MS);
    cr_expect_eq(pace_sleep(10 * MS, 100 * MS, 104 * MS), 5 * MS);
    /* the host came after the end, or shortly before: it does not sleep */
    cr_expect_eq(pace_sleep(10 * MS, 100 * MS, 109 * MS), 0);
    cr_expect_eq(pace_sleep(10 * MS, 100 * MS, 200 * MS), 0);
    cr_expect_eq(pace_sleep(10 * MS, 100 * MS, 109 * MS - PACE_LEAST_NS + 1), 0);
    cr_expect_eq(pace_sleep(10 * MS, 100 * MS, 109 * MS - PACE_LEAST_NS), PACE_LEAST_NS);
    /* the first step of a size, and one after a step of minutes */
    cr_expect_eq(pace_sleep(0, 100 * MS, 100 * MS), 0);
    cr_expect_eq(pace_sleep(INT64_C(100000) * MS, 0, 0), PACE_MOST_NS);
}

Test(launching, the_time_of_a_size_follows_its_steps) {
    /* seen to end 3 ms after the host came: the step took 12 ms */
    cr_expect_eq(pace_took(10 * MS, 100 * MS, 109 * MS, 112 * MS, true), 12 * MS);
    /* had ended before the host came, without a sleep: nothing is known */
    cr_expect_eq(pace_took(10 * MS, 100 * MS, 130 * MS, 130 * MS + 1000, false), 10 * MS);
    /* had ended during the sleep, which was too long */
    cr_expect_eq(pace_took(10 * MS, 100 * MS, 109 * MS, 109 * MS + 1000, true), 9 * MS);
    /* a step that gets shorter by half is met again after a few steps */
    int64_t took = 10 * MS, real = 5 * MS, n = 0;
    while (pace_sleep(took, 0, 0) > real) {
        int64_t came = pace_sleep(took, 0, 0);

        took = pace_took(took, 0, came, came + 1000, true);
        cr_assert(n++ < 7);
    }
}
