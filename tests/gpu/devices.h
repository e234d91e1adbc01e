#pragma once

/* devices - checks that a model on two devices gives the bits of one device: with peer access, by
 * single launches and by graphs, and with copies through host memory. Part of models.c. */

/* Returns true if there are two devices. Otherwise reports why nothing is checked: there is one
 * device, or opening the model failed. */
static bool has_two(const char *path, char *devices) {
    const struct driver_opts o = {.backend = "cuda", .path = path, .devices = devices};
    struct err err = {0};
    struct driver d;
    int r = driver_open(&d, &o, &err);

    if (r == 0)
        driver_close(&d);
    else if (strstr(err.message, "there are 1"))
        report_skipped("several devices", "the machine has one");
    else
        report_broken("several devices", err.message, r);
    return r == 0;
}

static void check_devices(const void *arg) {
    static char two[] = "0,1";
    static const struct {
        const char *name, *peers, *graphs;
        struct way way;
    } ways[] = {
        {"two devices: launch by launch",
         "1",
         "0",
         {"cuda", 100, PROMPT, 3, ENGINE_KV_F16, 0, true, 0, two}},
        {"two devices: graphs, overlapped",
         "1",
         "1",
         {"cuda", 100, PROMPT, 3, ENGINE_KV_F16, true, true, 0, two}},
        {"two devices: by layers",
         "0",
         "0",
         {"cuda", 100, PROMPT, 3, ENGINE_KV_F16, true, true, 0, two}},
    };
    static const struct tiny_model small = {.arch = "qwen3",
                                            .type = TENSOR_Q8_0,
                                            .n_layer = 2,
                                            .n_embd = 64,
                                            .n_ff = 64,
                                            .head_dim = 32},
                                   large = {.arch = "qwen3",
                                            .type = TENSOR_Q4_K,
                                            .n_layer = 3,
                                            .n_embd = 512,
                                            .n_ff = 1024};
    struct way one = ways[0].way;
    static struct watch first, other;
    char path[64];

    tiny_model_temp(*(const bool *)arg ? &small : &large, path);
    one.devices = NULL;
    if (has_two(path, two)) {
        run(path, &one, &first);
        for (size_t i = 0; i < ARRAY_SIZE(ways); i++) {
            memset(&other, 0, sizeof(other));
            setenv("WEFT_CUDA_PEERS", ways[i].peers, 1);
            setenv("WEFT_CUDA_GRAPHS", ways[i].graphs, 1);
            run(path, &ways[i].way, &other);
            compare(&first, &other, ways[i].name);
        }
    }
    unlink(path);
}
