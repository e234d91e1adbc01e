#include "engine/cuda/fast_api.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if __has_include(<cublasLt.h>)
#include <cublasLt.h>

/* Functions of the library, as they are declared in its header. */
#define FUNCTIONS(F)                                                                               \
    F(Create)                                                                                      \
    F(Destroy)                                                                                     \
    F(MatmulDescCreate)                                                                            \
    F(MatmulDescSetAttribute)                                                                      \
    F(MatmulDescDestroy)                                                                           \
    F(MatrixLayoutCreate)                                                                          \
    F(MatrixLayoutSetAttribute)                                                                    \
    F(MatrixLayoutDestroy)                                                                         \
    F(MatmulPreferenceCreate)                                                                      \
    F(MatmulPreferenceSetAttribute)                                                                \
    F(MatmulPreferenceDestroy)                                                                     \
    F(MatmulAlgoGetHeuristic)                                                                      \
    F(Matmul)

struct library {
    void *dl;
    cublasLtHandle_t handle;
    cublasLtMatmulPreference_t preference;
#define MEMBER(NAME) __typeof__(&cublasLt##NAME) NAME;
    FUNCTIONS(MEMBER)
};

/* Column by column, as the library sees it: A is W, B the activations, D = y. */
struct plan {
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algorithm;
};

static int answer(cublasStatus_t s) {
    return s == CUBLAS_STATUS_SUCCESS                                             ? 0
           : s == CUBLAS_STATUS_NOT_SUPPORTED || s == CUBLAS_STATUS_INVALID_VALUE ? FAST_REFUSED
                                                                                  : (int)s;
}

static bool find_functions(struct library *l) {
    bool all = true;

#define FIND(NAME)                                                                                 \
    *(void **)&l->NAME = dlsym(l->dl, "cublasLt" #NAME);                                           \
    all = all && l->NAME;
    FUNCTIONS(FIND)
    return all;
}

static void close_library(void *library) {
    struct library *l = library;

    if (l->preference)
        l->MatmulPreferenceDestroy(l->preference);
    if (l->handle)
        l->Destroy(l->handle);
    if (l->dl)
        dlclose(l->dl);
    free(l);
}

static int prepare(struct library *l) {
    size_t workspace = FAST_WORKSPACE;
    cublasStatus_t s = l->Create(&l->handle);

    s = s ? s : l->MatmulPreferenceCreate(&l->preference);
    return answer(s ? s
                    : l->MatmulPreferenceSetAttribute(l->preference,
                                                      CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                      &workspace, sizeof(workspace)));
}

static int open_library(void **out, char *why, size_t size) {
    static const char *const names[] = {"libcublasLt.so.13", "libcublasLt.so.12",
                                        "/usr/local/cuda/lib64/libcublasLt.so.13",
                                        "/usr/local/cuda/lib64/libcublasLt.so.12"};
    struct library *l = calloc(1, sizeof(*l));
    size_t i = 0;

    if (!l)
        return FAST_REFUSED;
    while (i < sizeof(names) / sizeof(*names) && !l->dl)
        l->dl = dlopen(names[i++], RTLD_NOW | RTLD_LOCAL);
    if (!l->dl || !find_functions(l)) {
        snprintf(why, size, "%s",
                 l->dl ? "libcublasLt lacks a function" : "no libcublasLt.so.13 or .12");
        close_library(l);
        return FAST_REFUSED;
    }
    snprintf(why, size, "%s", names[i - 1]);
    int r = prepare(l);
    if (r) {
        snprintf(why, size, "%s cannot be used: %d", names[i - 1], r);
        close_library(l);
        return r;
    }
    *out = l;
    return 0;
}

static void plan_free(void *library, void *plan) {
    struct library *l = library;
    struct plan *p = plan;

    if (p->d)
        l->MatrixLayoutDestroy(p->d);
    if (p->b)
        l->MatrixLayoutDestroy(p->b);
    if (p->a)
        l->MatrixLayoutDestroy(p->a);
    if (p->desc)
        l->MatmulDescDestroy(p->desc);
    free(p);
}

static cublasStatus_t describe(struct library *l, struct plan *p, const struct fast_shape *shape,
                               uint32_t n_rows) {
    const int32_t transposed = CUBLAS_OP_T, mode = CUBLASLT_POINTER_MODE_DEVICE;
    const int32_t epilogue = CUBLASLT_EPILOGUE_BIAS, bias = CUDA_R_32F;
    cublasStatus_t s = l->MatmulDescCreate(&p->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);

    s = s ? s : l->MatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, 4);
    s = s ? s : l->MatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_POINTER_MODE, &mode, 4);
    if (shape->bias) {
        s = s ? s : l->MatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, 4);
        s = s ? s
              : l->MatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &bias, 4);
    }
    s = s ? s : l->MatrixLayoutCreate(&p->a, CUDA_R_16F, shape->n_in, shape->n_out, shape->n_in);
    s = s ? s : l->MatrixLayoutCreate(&p->b, CUDA_R_16F, shape->n_in, n_rows, shape->n_in);
    return s ? s : l->MatrixLayoutCreate(&p->d, CUDA_R_32F, shape->n_out, n_rows, shape->n_out);
}

static int choose(struct library *l, struct plan *p) {
    cublasLtMatmulHeuristicResult_t found;
    int n = 0;
    cublasStatus_t s = l->MatmulAlgoGetHeuristic(l->handle, p->desc, p->a, p->b, p->d, p->d,
                                                 l->preference, 1, &found, &n);

    if (s || n == 0)
        return s ? answer(s) : FAST_REFUSED;
    p->algorithm = found.algo;
    return answer(found.state);
}

static int plan(void *library, const struct fast_shape *shape, uint32_t n_rows, void **out) {
    struct plan *p = calloc(1, sizeof(*p));

    if (!p)
        return FAST_REFUSED;
    int r = answer(describe(library, p, shape, n_rows));
    r = r ? r : choose(library, p);
    if (r)
        plan_free(library, p);
    else
        *out = p;
    return r;
}

static int run(struct library *l, const struct plan *p, const struct fast_product *q,
               void *stream) {
    return answer(l->Matmul(l->handle, p->desc, q->alpha, q->w, p->a, q->x, p->b, q->beta, q->y,
                            p->d, q->y, p->d, &p->algorithm, q->workspace, FAST_WORKSPACE,
                            (cudaStream_t)stream));
}

/* An algorithm that was chosen for more rows and does not do for these is chosen again. */
static int multiply(void *library, void *plan, const struct fast_product *q, void *stream) {
    struct library *l = library;
    struct plan *p = plan;
    uint64_t n = q->n_rows;
    cublasStatus_t s =
        l->MatrixLayoutSetAttribute(p->b, CUBLASLT_MATRIX_LAYOUT_COLS, &n, sizeof(n));

    s = s ? s : l->MatrixLayoutSetAttribute(p->d, CUBLASLT_MATRIX_LAYOUT_COLS, &n, sizeof(n));
    if (q->bias)
        s = s ? s
              : l->MatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &q->bias,
                                          sizeof(q->bias));
    if (s)
        return answer(s);
    int r = run(l, p, q, stream);
    if (r == FAST_REFUSED && choose(l, p) == 0)
        r = run(l, p, q, stream);
    return r;
}

static const struct fast_api real = {
    .open = open_library,
    .close = close_library,
    .plan = plan,
    .plan_free = plan_free,
    .multiply = multiply,
};
#else
static int open_nothing(void **out, char *why, size_t size) {
    (void)out;
    snprintf(why, size, "this build does not know cublasLt.h");
    return FAST_REFUSED;
}

static const struct fast_api real = {.open = open_nothing};
#endif

const struct fast_api *fast_api(void) {
    return &real;
}
