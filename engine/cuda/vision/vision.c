/*
 * vision - the backend of image encoders on a device. Its memory was counted when the device was
 * opened: matrices and vectors are among the weights, buffers in be.pictures. Products are
 * the model's. Work is enqueued in the device's stream between steps; cuda_vision_end() waits for
 * it. A call that fails marks the device as lost, as in a step, and later calls do nothing.
 */

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <string.h>

#include "engine/cuda/cuda.h"
#include "engine/cuda/vision/kernels_vision.h"
#include "engine/vision/encoder.h"
#include "engine/vision/ops.h"

/* struct vis_mat is struct weights here; the device frees it. */

/* State of the backend. Invariant: used never exceeds the bytes that were counted. */
struct vis_be {
    struct be *b;
    struct vis_sizes sizes;
    struct vis_stored heads;
    /* the rows of a product in packed form, and their scales */
    uint16_t *packed;
    float *scale;
    uint8_t *places, *pixels;
    size_t used;
};

static const char *cuda_vision_lacks(const struct projector *p) {
    if (p->n_layer && p->n_embd / p->n_head > VIS_WIDEST)
        return "heads of this size";
    return NULL;
}

static size_t whole(size_t n) {
    return round_up(MAX(n, 1), 256);
}

/* Returns the number of values that a head occupies in struct vis_stored. */
static uint32_t cuda_vision_padded(uint32_t dim) {
    if (dim <= 64)
        return 64;
    if (dim <= 80)
        return 80;
    return VIS_WIDEST;
}

/* Returns the next @bytes of the encoder's memory; while they are counted, @v has no backend. */
static void *cuda_vision_alloc(struct vis_be *v, size_t bytes) {
    void *at = NULL;

    if (v->b)
        at = v->b->pictures.memory + v->used;
    v->used += whole(bytes);
    assert(!v->b || v->used <= v->b->shape->picture_buffers);
    return at;
}

/* Takes the backend's own memory. Packed rows have up to two planes (pack_args). */
static void cuda_vision_lay_out(struct vis_be *v, const struct vis_sizes *s) {
    size_t rows = round_up(s->max_rows, WGMMA_ROWS);

    v->sizes = *s;
    v->heads = (struct vis_stored){.n_head = s->n_head,
                                   .dim = s->head_dim,
                                   .padded = cuda_vision_padded(s->head_dim),
                                   .max_keys = s->max_keys};
    v->heads.half =
        cuda_vision_alloc(v, 3ul * s->max_keys * s->n_head * v->heads.padded * sizeof(uint16_t));
    v->packed = cuda_vision_alloc(v, rows * round_up(s->max_in, 64) * 2 * sizeof(uint16_t));
    v->scale = cuda_vision_alloc(v, rows * sizeof(float));
    v->places = cuda_vision_alloc(v, s->place_bytes);
    v->pixels = cuda_vision_alloc(v, s->pixel_bytes);
}

static uint64_t cuda_vision_open_bytes(const struct vis_sizes *s, uint32_t n_threads) {
    struct vis_be v = {0};

    cuda_vision_lay_out(&v, s);
    return v.used;
}

static uint64_t buffer_bytes(size_t n) {
    return whole(n * sizeof(float));
}

/* Returns the bytes of a tensor of the encoder's file on the device. A convolution becomes one
 * matrix, that of patches with floats; gemma3's projection is transposed, vectors and tables are
 * stored as floats. */
static uint64_t tensor_bytes(const struct tensor *t) {
    uint64_t n = t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3];
    enum tile_format format = tile_format_of(t->format->type);
    enum tile_format floats = tile_format_of(TENSOR_F32);
    uint64_t bytes = tile_matrix_bytes(format, (uint32_t)t->ne[1], (uint32_t)t->ne[0]);

    if (t->n_dims < 2 || strcmp(t->name, "v.position_embd.weight") == 0)
        bytes = n * sizeof(float);
    else if (strncmp(t->name, "v.patch_embd.weight", 19) == 0 && t->n_dims > 2)
        bytes = tile_matrix_bytes(floats, (uint32_t)t->ne[3], (uint32_t)(n / t->ne[3]));
    else if (t->n_dims == 4)
        bytes = tile_matrix_bytes(format, (uint32_t)t->ne[3], (uint32_t)(n / t->ne[3]));
    else if (strcmp(t->name, "mm.input_projection.weight") == 0)
        bytes = MAX(bytes, tile_matrix_bytes(floats, (uint32_t)t->ne[0], (uint32_t)t->ne[1]));
    return round_up(bytes, 512);
}

static struct vis_be *cuda_vision_close_be(struct vis_be *v) {
    free(v);
    return NULL;
}

static int cuda_vision_open_be(struct vis_be **out, const struct image_encoder_opts *opts,
                               const struct vis_sizes *sizes, struct err *err) {
    struct vis_be *v = calloc(1, sizeof(*v));

    if (!v)
        return -ENOMEM;
    v->b = opts->be;
    cuda_vision_lay_out(v, sizes);
    *out = v;
    return 0;
}

static float *buffer(struct vis_be *v, size_t n) {
    return cuda_vision_alloc(v, n * sizeof(float));
}

/* Returns @r, the result of loading; sets @err if the device failed. */
static int report_load(const struct vis_be *v, int r, struct err *err) {
    if (r == -EIO)
        err_set(err, 0, NULL, "loading the image encoder: %s", v->b->fault.text);
    return r;
}

static int cuda_vision_load(struct vis_be *v, const struct tensor *t, const float *bias,
                            struct vis_mat **out, struct err *err) {
    struct weights *w = NULL;
    int r = cuda_load_one(v->b, t, bias, &w, err);

    *out = (struct vis_mat *)w;
    return report_load(v, r, err);
}

static int cuda_vision_vector(struct vis_be *v, const float *x, size_t n, const float **out,
                              struct err *err) {
    return report_load(v, cuda_load_floats(v->b, x, n, out, err), err);
}

static const void *cuda_vision_bring(struct vis_be *v, const void *from, size_t n) {
    assert(n <= v->sizes.place_bytes);
    cuda_load_bytes(v->b, from, n, v->places);
    return v->places;
}

static const uint8_t *pixels(struct vis_be *v, const uint8_t *from, size_t n, uint32_t n_lines,
                             size_t *pitch) {
    bool whole = *pitch == n;

    assert(n * n_lines <= v->sizes.pixel_bytes);
    for (uint32_t i = 0; i < (whole ? 1 : n_lines); i++)
        cuda_load_bytes(v->b, from + i * *pitch, whole ? n * n_lines : n, v->pixels + i * n);
    *pitch = n;
    return v->pixels;
}

static void cuda_vision_linear(struct vis_be *v, const struct vis_mat *m, const float *in,
                               uint32_t n_rows, float *out, bool add) {
    struct weights *w = (struct weights *)m;
    struct operand x = {.packed = v->packed,
                        .scale = v->scale,
                        .n_rows = n_rows,
                        .cores = wgmma_handles(v->b, n_rows),
                        .untimed = true};
    const struct pack_args pack = {.x = in,
                                   .packed = v->packed,
                                   .scale = v->scale,
                                   .kind = PACK_PLAIN,
                                   .n = w->n_in,
                                   .n_padded = (uint32_t)round_up(w->n_in, 64),
                                   .cores = x.cores};

    assert(n_rows <= v->sizes.max_rows && w->n_in <= v->sizes.max_in);
    w->m[0].y = out;
    if (CUDA_LAUNCH(v->b, pack, n_rows, 1, PACK_THREADS, &pack) == 0)
        cuda_matmul(v->b, w, &x, add);
}

static void rows(struct vis_be *v, const struct vis_rows *a) {
    CUDA_LAUNCH(v->b, vis_row, a->n, 1, CUDA_THREADS, a);
}

static void heads(struct vis_be *v, const struct vis_heads *a) {
    const struct vis_head_args args = {*a, v->heads};
    uint32_t warps = CUDA_THREADS / 32;

    assert(a->first + a->n <= v->sizes.max_keys);
    CUDA_LAUNCH(v->b, vis_head, a->n, (3 * v->sizes.n_head + warps - 1) / warps, CUDA_THREADS,
                &args);
}

static void cuda_vision_launch_attend(struct vis_be *v, const struct vis_attend *a,
                                      struct vis_attend_args *args, uint32_t grid_x,
                                      uint32_t grid_y) {
    struct launch l = {kernel_vis_attend_128, grid_x, grid_y, VIS_THREADS, "vis_attend", 0};

    if (v->heads.padded == 64)
        l.kernel = kernel_vis_attend_64;
    else if (v->heads.padded == 80)
        l.kernel = kernel_vis_attend_80;
    args->from = v->heads;
    args->out = a->out;
    args->scale = a->scale * (float)M_LOG2E;
    cuda_launch(v->b, &l, args, sizeof(*args));
}

static void cuda_vision_attend(struct vis_be *v, const struct vis_attend *a) {
    struct vis_attend_args args = {.start = a->start, .n_blocks = vis_head_blocks(a->longest)};

    cuda_vision_launch_attend(v, a, &args, a->n_segments * args.n_blocks, v->sizes.n_head);
}

static void cuda_vision_attend_blocks(struct vis_be *v, const struct vis_attend *a, uint32_t first,
                                      uint32_t n) {
    struct vis_attend_args args = {
        .n_patches = a->n_patches, .n_blocks = vis_head_blocks(a->n_patches), .first = first};

    cuda_vision_launch_attend(v, a, &args, n, 1);
}

static void cuda_vision_get(struct vis_be *v, const float *from, uint32_t n_rows, uint32_t n,
                            float *to, size_t stride) {
    uint32_t most = (uint32_t)(v->b->load.bytes / sizeof(float) / n);

    assert(most > 0);
    for (uint32_t r = 0, more; r < n_rows; r += more) {
        const float *x = cuda_load_back(v->b, from + (size_t)r * n,
                                        (size_t)MIN(most, n_rows - r) * n * sizeof(float));

        more = MIN(most, n_rows - r);
        for (uint32_t i = 0; i < more && x; i++)
            memcpy(to + (r + i) * stride, x + (size_t)i * n, n * sizeof(float));
    }
}

static int cuda_vision_end(struct vis_be *v) {
    return cuda_load_wait(v->b);
}

const struct vis_ops vis_cuda = {
    .name = "cuda",
    .lacks = cuda_vision_lacks,
    .open = cuda_vision_open_be,
    .close = cuda_vision_close_be,
    .open_bytes = cuda_vision_open_bytes,
    .buffer_bytes = buffer_bytes,
    .tensor_bytes = tensor_bytes,
    .buffer = buffer,
    .load = cuda_vision_load,
    .vector = cuda_vision_vector,
    .bring = cuda_vision_bring,
    .pixels = pixels,
    .linear = cuda_vision_linear,
    .rows = rows,
    .heads = heads,
    .attend = cuda_vision_attend,
    .attend_blocks = cuda_vision_attend_blocks,
    .get = cuda_vision_get,
    .end = cuda_vision_end,
};
