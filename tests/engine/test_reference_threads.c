/* Tests that a large product of the reference backend, whose outputs are divided among threads, has
 * the same bits for every number of threads. */

#include <criterion/criterion.h>
#include <unistd.h>

#include "base/cpus.h"
#include "tests/support/engine_driver.h"
#include "tests/support/tiny_model.h"

enum { N_PROMPT = 3, N_OUT = 2 };

static uint32_t n_cpus, n_asked;

/* Replaces cpus_usable() (meson.build). */
uint32_t __wrap_cpus_usable(void);
uint32_t __wrap_cpus_usable(void) {
    n_asked++;
    return n_cpus;
}

static void run(const char *path, uint32_t cpus, uint64_t digest[N_OUT]) {
    static const int32_t prompt[N_PROMPT] = {3, 1, 4};
    struct driver_opts o = {.backend = "reference", .path = path};
    struct driver d;
    struct err err = {0};

    n_cpus = cpus;
    cr_assert(driver_open(&d, &o, &err) == 0, "%s", err.message);
    n_asked = 0;
    struct driver_seq *s = driver_add(&d, prompt, N_PROMPT, N_OUT, NULL);
    driver_prefill(&d, s, 0);
    driver_decode(&d, &s, 1, N_OUT - 1, false);
    for (int i = 0; i < N_OUT; i++)
        digest[i] = s->out[i].digest;
    cr_expect(n_asked >= N_OUT, "no product was large");
    driver_drop(&d, s);
    driver_close(&d);
}

/* 16,411 outputs of 256 columns: more than 2^22 weights, and no number of threads divides them. */
Test(reference_threads, their_number_changes_no_bit) {
    static const uint32_t numbers[] = {2, 3, 16, 100};
    uint64_t alone[N_OUT], digest[N_OUT];
    char path[64];

    tiny_model_temp(
        &(struct tiny_model){.arch = "llama", .type = TENSOR_Q8_0, .n_layer = 1, .n_vocab = 16411},
        path);
    run(path, 1, alone);
    cr_expect(alone[0] != 0 && alone[0] != alone[1]);
    for (size_t i = 0; i < ARRAY_SIZE(numbers); i++) {
        run(path, numbers[i], digest);
        for (int k = 0; k < N_OUT; k++)
            cr_expect(digest[k] == alone[k], "%u threads, output %d", numbers[i], k);
    }
    unlink(path);
}
