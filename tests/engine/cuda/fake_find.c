#include "tests/engine/cuda/fake_find.h"

#include <criterion/criterion.h>
#include <dlfcn.h>
#include <string.h>
#include <unistd.h>

#include "base/try.h"
#include "tests/support/tiny_model.h"

struct fake_cuda *fake_find(void) {
    static struct fake_cuda *found;
    char path[300];
    ssize_t n = readlink("/proc/self/exe", path, 200);

    if (found)
        return found;
    cr_assert(n > 0);
    path[n] = 0;
    strcpy(strrchr(path, '/'), "/weft-cuda.so");
    void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    cr_assert(lib != NULL, "%s", dlerror());
    found = dlsym(lib, "fake_cuda");
    cr_assert(found != NULL);
    return found;
}

void fake_small_model(char path[64]) {
    struct tiny_model m = {.type = TENSOR_Q8_0,
                           .n_layer = 1,
                           .n_embd = 64,
                           .n_ff = 64,
                           .n_vocab = 40,
                           .n_head = 2,
                           .n_head_kv = 1,
                           .head_dim = 32,
                           .max_context = 600};

    tiny_model_temp(&m, path);
}

int fake_run_step(struct engine *e, const struct engine_batch *b, struct engine_result *out) {
    TRY(engine_launch(e, b));
    TRY(engine_seal(e, b->step));
    return engine_wait(e, b->step, out);
}

int fake_run_row(struct engine *e, uint64_t step, const uint32_t *mask, struct engine_result *out) {
    static const uint32_t page[] = {0, 1, 2, 3};
    const uint32_t ends[2] = {0, (uint32_t)(step + 15) / 16};
    const int32_t token = (int32_t)(step * 7 % 40);
    const struct engine_seq seq = {.n_rows = 1, .pos0 = (uint32_t)step - 1, .feed = -1};
    const struct engine_want want = {.what = WANT_SAMPLE};
    const struct engine_param param = {.top_p = 1, .repetition = 1};
    const struct engine_batch b = {.step = step,
                                   .n_rows = 1,
                                   .n_seqs = 1,
                                   .n_wants = 1,
                                   .n_params = 1,
                                   .token = &token,
                                   .seq = &seq,
                                   .table[KV_GLOBAL] = {ends, page},
                                   .want = &want,
                                   .param = &param};

    TRY(engine_launch(e, &b));
    if (mask)
        TRY(engine_mask(e, step, 0, mask));
    TRY(engine_seal(e, step));
    return engine_wait(e, step, out);
}
