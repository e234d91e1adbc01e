#pragma once

/* trace_steps - traces steps of decoding (engine/cuda/trace.h). Part of models.c. */

#include "tests/gpu/trace_table.h"

enum { TRACED_STEPS = 5 };

/* Returns the trace of the weft-cuda.so in the folder of the program, or NULL. */
static const struct trace_calls *trace_find(void) {
    char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 20);

    if (n < 0)
        return NULL;
    path[n] = 0;
    strcpy(strrchr(path, '/'), "/weft-cuda.so");
    void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    return lib ? dlsym(lib, "weft_trace") : NULL;
}

/* Traces steps that decode 1, 16 and 64 sequences of 1,024 tokens, as they are served: from a
 * graph, launched early. The first steps, which capture the graph, are not traced. */
static void trace_steps(const void *arg) {
    static const uint32_t n_seqs[] = {1, 16, 64};
    const struct timing *t = arg;
    const struct trace_calls *trace = trace_find();
    struct trace_slot *slot = calloc(TRACE_SLOTS, sizeof(*slot));
    uint32_t context = 1024 / t->shrink, n = 0, n_slots;
    int32_t prompt[1024];
    struct driver_seq *all[64];
    struct driver_opts o = {.backend = "cuda",
                            .path = t->path,
                            .page_tokens = 32,
                            .n_pages = 64 * 1100 / 32,
                            .kv_type = kv_both(t->kv),
                            .max_wants = 64,
                            .max_seqs = 64};
    struct driver d;
    char what[60];

    if (!trace || !slot) {
        report_skipped("trace", "weft-cuda.so is not traced");
        free(slot);
        return;
    }
    open_or_exit(&d, &o);
    for (size_t r = 0; r < ARRAY_SIZE(n_seqs); r++) {
        for (; n < MAX(n_seqs[r] / t->shrink, 1u); n++) {
            random_tokens(prompt, context, d.info->n_vocab, n);
            all[n] = driver_add(&d, prompt, context, 40, NULL);
            driver_prefill(&d, all[n], 512 / t->shrink);
        }
        driver_decode(&d, all, n, 4, false);
        int e = trace->start();
        driver_decode(&d, all, n, TRACED_STEPS, false);
        e = e ? e : trace->read(slot, &n_slots);
        report_check("the trace of kernels", e || n_slots == 0, 0);
        snprintf(what, sizeof(what), "decode, %u x %u tokens", n, context);
        if (e == 0)
            trace_print(slot, n_slots, TRACED_STEPS, what);
    }
    while (n-- > 0)
        driver_drop(&d, all[n]);
    driver_close(&d);
    free(slot);
}
