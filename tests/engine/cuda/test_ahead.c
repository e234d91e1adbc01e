/* Tests that products of few rows on Ada prefetch the first weights of the product that follows
 * them (WEFT_CUDA_AHEAD), no byte outside of its matrices, and that no bit changes. Kernels are
 * those of a family that multiplies bytes. */

#include <criterion/criterion.h>
#include <unistd.h>

#include "base/util.h"
#include "engine/cuda/kernels.h"
#include "tests/engine/cuda/fake_find.h"
#include "tests/engine/cuda/ways.h"
#include "tests/support/tiny_model.h"

/* What the product before prefetches; all 0 at the beginning of a step. */
static struct ahead promised[MATMUL_MATRICES];
/* Steps; products whose weights were prefetched, matrices of which only a part was, and those that
 * are not the matrices of the next product. */
static uint32_t n_steps, n_products, n_parts, n_wrong;

static void ahead_see(const char *kernel, uint64_t number, void *args) {
    const struct matmul_args *a = args; /* also those of matvec_norm begin with it */

    (void)number;
    if (strcmp(kernel, "embed") == 0) {
        memset(promised, 0, sizeof(promised));
        n_steps++;
    }
    if (strncmp(kernel, "matvec", 6) != 0)
        return;
    n_products += promised[0].bytes > 0;
    for (uint32_t i = 0; i < MATMUL_MATRICES; i++) {
        const struct matrix *m = &a->m[i];
        size_t bytes = 0;

        if (promised[i].bytes == 0)
            continue;
        if (i < a->n_mats)
            bytes = tile_matrix_bytes(m->format, m->n_out, a->n_blocks * 16);
        n_wrong += promised[i].tiles != m->tiles || promised[i].bytes > bytes;
        n_parts += promised[i].bytes < bytes;
    }
    memcpy(promised, a->ahead, sizeof(promised));
}

/* Runs a model in steps of eight rows and of one on a device of compute capability
 * @capability / 10. */
static void ahead_run(const char *path, int capability, const char *mib, struct trace *t) {
    static const struct way way = {.chunk = 8, .fuse = "1"};

    n_steps = n_products = n_parts = n_wrong = 0;
    fake_find()->major = capability / 10;
    fake_find()->minor = capability % 10;
    fake_find()->on_launch = ahead_see;
    setenv("WEFT_CUDA_AHEAD", mib, 1);
    ways_run(path, "cuda", &way, t);
    unsetenv("WEFT_CUDA_AHEAD");
    fake_find()->on_launch = NULL;
}

/* Gate and up have 1.1 MB each, so half a MiB of each is prefetched; the other matrices are
 * smaller. */
Test(ahead, the_next_product_is_prefetched) {
    static const struct {
        const char *mib;
        int capability;
        uint32_t n_products, n_parts;
    } cases[] = {{"0", 89, 0, 0}, {"1", 89, 4, 2}, {"64", 89, 4, 0}, {"1", 86, 0, 0}};
    struct trace first = {0};
    char path[64];

    tiny_model_temp(&(struct tiny_model){.arch = "qwen3",
                                         .type = TENSOR_Q8_0,
                                         .n_layer = 1,
                                         .head_dim = 64,
                                         .n_embd = 256,
                                         .n_ff = 4096,
                                         .n_head = 4,
                                         .n_head_kv = 2},
                    path);
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct trace t = {0};

        ahead_run(path, cases[i].capability, cases[i].mib, i ? &t : &first);
        cr_expect_eq(n_wrong, 0, "case %zu: %u", i, n_wrong);
        cr_expect_eq(n_products, cases[i].n_products * n_steps, "case %zu: %u", i, n_products);
        cr_expect(n_parts >= cases[i].n_parts * n_steps, "case %zu: %u", i, n_parts);
        for (uint32_t r = 0; r + 1 < LONGEST && i; r++)
            cr_expect(first.at[r].digest == t.at[r].digest, "case %zu: position %u", i, r);
        free(t.logits);
    }
    free(first.logits);
    unlink(path);
}
