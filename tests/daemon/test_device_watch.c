/* device_watch with the NVML that LD_LIBRARY_PATH names: tests/daemon/nvml/fake_nvml.c. */
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "daemon/worker/device_watch.h"
#include "nvml/fake_nvml.h"

#define ADDRESS "0000:17:00.0"

static struct fake_nvml *fake(void) {
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);

    cr_assert(library, "%s", dlerror());
    return dlsym(library, "fake_nvml");
}

static struct device_watch *watch(void) {
    struct device_watch *w = NULL;
    struct err err = {0};

    cr_assert_eq(device_watch_new(&w, ADDRESS, &err), 0, "%s", err.message);
    return w;
}

Test(device_watch, tells_what_nvml_tells) {
    struct fake_nvml *f = fake();
    struct device_watch *w = watch();
    struct device_state s = device_watch_read(w);

    cr_expect_eq(s.memory_bytes, 1ull << 37);
    cr_expect_eq(s.memory_used_bytes, 1ull << 36);
    cr_expect_eq(s.power_mw, 312000);
    cr_expect_eq(s.clock_mhz, 1980);
    cr_expect_eq(s.celsius, 54);
    cr_expect_not(s.throttled);
    device_watch_free(w);
    cr_expect_eq(f->n_open, 0);
}

Test(device_watch, asks_again_and_tells_what_the_driver_counts, .timeout = 60) {
    struct fake_nvml *f = fake();

    uint64_t start = f->mj;
    f->reasons = 1; /* idle */
    struct device_watch *w = watch();
    struct device_state s = device_watch_read(w);
    uint64_t first = s.energy_mj;
    cr_expect_geq(first, start);
    cr_expect_leq(first, start + 300000); /* the thread may have read once */
    f->reasons = 1 | 0x20;
    int n = f->n_asked;
    while (f->n_asked < n + 3)
        usleep(1000);
    s = device_watch_read(w);
    cr_expect(s.throttled, "a clock that is lowered for heat");
    cr_expect_geq(s.energy_mj, first + 600000);
    cr_expect_eq((s.energy_mj - start) % 300000, 0);
    device_watch_free(w);
}

Test(device_watch, what_a_device_does_not_tell_is_0) {
    struct fake_nvml *f = fake();

    f->old = true;
    struct device_watch *w = watch();
    struct device_state s = device_watch_read(w);
    cr_expect_eq(s.energy_mj, 0);
    cr_expect_eq(s.power_mw, 0);
    cr_expect_eq(s.clock_mhz, 1980);
    device_watch_free(w);
}

Test(device_watch, tells_the_same_by_a_newer_nvml) {
    struct fake_nvml *f = fake();

    f->newer = true;
    f->reasons = 0x40;
    struct device_watch *w = watch();
    struct device_state s = device_watch_read(w);
    cr_expect_eq(s.celsius, 54);
    cr_expect(s.throttled);
    device_watch_free(w);
}

/* Reasons for a lower clock count unless they are a setting. */
Test(device_watch, some_reasons_for_a_lower_clock_count) {
    struct fake_nvml *f = fake();

    for (uint32_t bit = 0; bit < 12; bit++) {
        f->reasons = 1u << bit;
        struct device_watch *w = watch();
        cr_expect_eq(device_watch_read(w).throttled, 0xec >> bit & 1, "%u", bit);
        device_watch_free(w);
    }
    f->celsius = (unsigned)-3;
    f->newer = true;
    struct device_watch *w = watch();
    cr_expect_eq(device_watch_read(w).celsius, 0);
    device_watch_free(w);
}

Test(device_watch, says_why_there_is_none) {
    struct device_watch *w = NULL;
    struct err err = {0};

    cr_expect_eq(device_watch_new(&w, "0000:19:00.0", &err), -ENODEV);
    cr_expect_str_eq(err.message, "NVML of 0000:19:00.0: Not Found");
    cr_expect_eq(fake()->n_open, 0);
    fake()->refuses = 9;
    cr_expect_eq(device_watch_new(&w, ADDRESS, &err), -ENODEV);
    cr_expect_str_eq(err.message, "NVML of " ADDRESS ": Driver Not Loaded");
    cr_expect_null(w);
    struct device_state s = device_watch_read(NULL);
    cr_expect_eq(s.memory_bytes, 0);
    device_watch_free(NULL);
}

/* A device that is lost may keep the calls of its driver forever. */
Test(device_watch, does_not_wait_for_a_call_that_hangs, .timeout = 60) {
    struct fake_nvml *f = fake();
    struct device_watch *w = watch();

    f->hangs = true;
    int n = f->n_asked;
    usleep(1200000); /* until the next reading */
    cr_expect_eq(device_watch_read(w).clock_mhz, 1980);
    cr_expect_leq(f->n_asked, n + 1);
    device_watch_free(w);
}
