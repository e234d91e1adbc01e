/* The file of a model's experts as the worker reads it: any bytes behind a valid head. */

#include <unistd.h>

#include "engine/picks.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/vocab.h"

#define LAYERS 3u
#define EXPERTS 40u

static const struct model_shape shape = {
    .n_layer = LAYERS, .n_expert = EXPERTS, .n_expert_used = 2};
static struct gguf *model;

/* Writes the file as a worker leaves it to the shared file in memory. */
static void make(void) {
    uint32_t bits[LAYERS * 2] = {1, 0, 2, 0, 3, 0};
    struct picks k;

    fuzz_file("", 0);
    picks_open(&k, fuzz_file_fd(), model, &shape);
    FUZZ_ASSERT(picks_counts(&k) && !picks_placed(&k));
    picks_place(&k, bits);
    picks_close(&k);
}

static void open_model(void) {
    CLEANUP(buf_deinit) struct buf b = {.max = 1 << 20};
    struct err err = {0};

    if (model)
        return;
    FUZZ_ASSERT(vocab_seed(0, &b) && gguf_open(&model, fuzz_file(b.data, b.len), &err) == 0);
    FUZZ_ASSERT(gguf_copy_data(model) == 0); /* the file in memory gets other content */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
    static uint64_t now[LAYERS * EXPERTS];
    struct picks k;
    off_t at = 0;

    open_model();
    if (len > 0 && data[0] & 1) { /* behind the valid head */
        make();
        at = 32;
        FUZZ_ASSERT(pwrite(fuzz_file_fd(), data + 1, MIN(len - 1, 900u), at) >= 0);
    } else {
        fuzz_file(data, len);
    }
    picks_open(&k, fuzz_file_fd(), model, &shape);
    FUZZ_ASSERT(picks_counts(&k));
    for (size_t i = 0; i < LAYERS * EXPERTS; i++)
        now[i] = i;
    picks_count(&k, now);
    picks_close(&k);
    return 0;
}
