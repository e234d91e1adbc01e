#pragma once

/* profile - runs single steps between the calls that start and stop a profiler. Part of
 * models.c. */

/* Calls a function of the driver that starts or stops a profiler. */
static void profiler(const char *call) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    int (*fn)(void) = NULL;

    if (driver)
        *(void **)&fn = dlsym(driver, call); /* the conversion that POSIX recommends */
    if (!fn || fn() != 0)
        printf("%s: not to be had\n", call);
}

/* Profiles one step of each kind with no other step in flight: decoding 1 to 64 sequences of 1,024
 * tokens, then 512 and 2,048 rows of prompts. Each step begins with the kernels in OPENING of
 * steps.py. */
static void profile_steps(const void *arg) {
    static const uint32_t n_seqs[] = {1, 8, 16, 64}, n_rows[] = {512, 2048};
    const struct timing *t = arg;
    uint32_t context = 1024 / t->shrink;
    int32_t prompt[4096];
    struct driver_seq *all[64];
    struct driver_opts o = {.backend = "cuda",
                            .path = t->path,
                            .page_tokens = 32,
                            .max_rows = 2048 / t->shrink,
                            .n_pages = 64 * 1100 / 32 + 2 * 4200 / 32,
                            .n_listed = 128 * (4200 / 32 + 1),
                            .kv_type = kv_both(t->kv),
                            .max_wants = 64,
                            .max_seqs = 64};
    struct driver d;
    uint32_t n = 0;

    open_or_exit(&d, &o);
    for (size_t r = 0; r < ARRAY_SIZE(n_seqs); r++) {
        for (; n < MAX(n_seqs[r] / t->shrink, 1u); n++) {
            random_tokens(prompt, context, d.info->n_vocab, n);
            all[n] = driver_add(&d, prompt, context, 24, NULL);
            driver_prefill(&d, all[n], 512 / t->shrink);
        }
        driver_decode(&d, all, n, 2, false);
        profiler("cuProfilerStart");
        driver_decode(&d, all, n, 1, false);
        profiler("cuProfilerStop");
    }
    for (size_t r = 0; r < ARRAY_SIZE(n_rows); r++) {
        random_tokens(prompt, 4096 / t->shrink, d.info->n_vocab, n_rows[r]);
        struct driver_seq *s = driver_add(&d, prompt, 4096 / t->shrink, 1, NULL);
        struct driver_part part = {s, n_rows[r] / t->shrink};

        driver_step(&d, &part, 1);
        profiler("cuProfilerStart");
        driver_step(&d, &part, 1);
        profiler("cuProfilerStop");
        driver_drop(&d, s);
    }
    while (n-- > 0)
        driver_drop(&d, all[n]);
    driver_close(&d);
}
