/*
 * Fills the tensors of test models with the random weights that their expected values were computed
 * from. usage: make_model DRAWS MODEL.gguf...
 *
 * MODEL.gguf holds a complete header and zeros in the place of the tensors; of a split model all
 * shards are named, in order. DRAWS is a text of these lines:
 *
 *     state S S I I             state and increment of the generator, 64 bits each, high half first
 *     normal TENSOR MUL DIV ADD the next normal numbers x, as x * MUL / DIV + ADD
 *     given TENSOR HEX          the bytes
 *     skip N                    N numbers of the generator are not used
 *     ties away                 Q8_0: halves are rounded away from zero, not to even codes
 *
 * The generator is PCG XSL-RR 128/64 (O'Neill 2014), normal numbers come from the ziggurat of 256
 * layers (Marsaglia and Tsang 2000), both in the order of numpy.random.default_rng(). The caller
 * compares the checksum of each file with the recorded one.
 */

#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/gguf.h"
#include "base/mathx.h"

_Noreturn static void die(const char *what, const char *which) {
    fprintf(stderr, "make_model: %s: %s\n", which, what);
    exit(1);
}

/* -- random numbers ---------------------------------------------------------------------------- */

__extension__ typedef unsigned __int128 u128;

struct pcg {
    u128 state, inc;
};

static uint64_t pcg_next(struct pcg *g) {
    const u128 factor = (u128)0x2360ED051FC65DA4 << 64 | 0x4385DF649FCCF645;

    g->state = g->state * factor + g->inc;
    uint64_t mixed = (uint64_t)(g->state >> 64) ^ (uint64_t)g->state;
    unsigned turn = (unsigned)(g->state >> 122);
    return mixed >> turn | mixed << (-turn & 63);
}

static double pcg_uniform(struct pcg *g) {
    return (double)(pcg_next(g) >> 11) * 0x1p-53;
}

#define LAYERS 256
#define TAIL 3.6541528853610088 /* where the lowest layer's tail begins */

/* Layer i reaches from 0 to width[i] * 2^52; left of inside[i] / 2^52 of that it is below the
 * curve, whose height is height[i] at its right end. */
static struct {
    double width[LAYERS], height[LAYERS];
    uint64_t inside[LAYERS];
} ziggurat;

static void ziggurat_init(void) {
    long double r = 3.6541528853610087963519472518L, f = expl(-r * r / 2), x = r;
    long double area = r * f + sqrtl(acosl(-1) / 2) * erfcl(r / sqrtl(2));

    ziggurat.width[0] = (double)(area / f * 0x1p-52L);
    ziggurat.inside[0] = (uint64_t)(r / (area / f) * 0x1p52L);
    ziggurat.height[0] = 1;
    for (int i = LAYERS - 1; i > 0; i--) {
        long double next = i > 1 ? sqrtl(-2 * logl(area / x + f)) : 0;

        ziggurat.width[i] = (double)(x * 0x1p-52L);
        ziggurat.inside[i] = (uint64_t)(next / x * 0x1p52L);
        ziggurat.height[i] = (double)f;
        x = next;
        f = expl(-x * x / 2);
    }
}

static double ziggurat_tail(struct pcg *g, bool negative) {
    for (;;) {
        double x = -log1p(-pcg_uniform(g)) / TAIL, y = -log1p(-pcg_uniform(g));

        if (y + y > x * x)
            return negative ? -(TAIL + x) : TAIL + x;
    }
}

static double pcg_normal(struct pcg *g) {
    for (;;) {
        uint64_t bits = pcg_next(g), place = bits >> 9 & ((1ull << 52) - 1);
        unsigned i = bits & 0xFF;
        double x = (double)place * ziggurat.width[i];

        if (bits & 0x100)
            x = -x;
        if (place < ziggurat.inside[i])
            return x;
        if (i == 0)
            return ziggurat_tail(g, place >> 8 & 1);
        double top = ziggurat.height[i - 1], bottom = ziggurat.height[i];
        if ((top - bottom) * pcg_uniform(g) + bottom < exp(-0.5 * x * x))
            return x;
    }
}

/* -- formats ----------------------------------------------------------------------------------- */

static bool ties_away; /* quantisers differ */

/* 32 values as a half-precision scale and 8-bit multiples of it. */
static void put_q8_0(const float *x, uint8_t *out) {
    float most = 0;

    for (int i = 0; i < 32; i++)
        most = fmaxf(most, fabsf(x[i]));
    float scale = most / 127;
    uint16_t half = mx_float_to_half(scale);
    memcpy(out, &half, 2);
    for (int i = 0; i < 32; i++) {
        float code = x[i] * (scale > 0 ? 1 / scale : 0);

        out[2 + i] = (uint8_t)(int8_t)(ties_away ? roundf(code) : rintf(code));
    }
}

/* 32 values as a power of two and floats of four bits, the first 16 in the lower halves of the
 * bytes. */
static void put_mxfp4(const float *x, uint8_t *out) {
    static const int8_t twice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    float most = 0;

    for (int i = 0; i < 32; i++)
        most = fmaxf(most, fabsf(x[i]));
    out[0] = most > 0 ? (uint8_t)(ilogbf(most) - 2 + 127) : 0;
    memset(out + 1, 0, 16);
    for (int i = 0; i < 32; i++) {
        uint8_t best = 0;
        float unit = mx_e8m0_half(out[0]);

        for (uint8_t k = 1; k < 16; k++)
            if (fabsf(twice[k] * unit - x[i]) < fabsf(twice[best] * unit - x[i]))
                best = k;
        out[1 + i % 16] |= (uint8_t)(best << (i / 16 * 4));
    }
}

static void put_block(enum tensor_type type, const float *x, uint8_t *out, const char *name) {
    uint32_t bits = mx_bits_of(*x);
    uint16_t half = type == TENSOR_BF16 ? (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16)
                                        : mx_float_to_half(*x);

    if (type == TENSOR_F32)
        memcpy(out, x, sizeof(*x));
    else if (type == TENSOR_F16 || type == TENSOR_BF16)
        memcpy(out, &half, sizeof(half));
    else if (type == TENSOR_Q8_0)
        put_q8_0(x, out);
    else if (type == TENSOR_MXFP4)
        put_mxfp4(x, out);
    else
        die("its format cannot be written", name);
}

/* -- files ------------------------------------------------------------------------------------- */

static char **files;
static int n_files;

static void write_tensor(const struct tensor *t, const uint8_t *bytes) {
    int fd = t->shard < n_files ? open(files[t->shard], O_WRONLY) : -1;

    if (fd < 0 || pwrite(fd, bytes, t->n_bytes, (off_t)t->file_offset) != (ssize_t)t->n_bytes ||
        close(fd) < 0)
        die("cannot be written", t->name);
}

static void fill(const struct tensor *t, struct pcg *g, double mul, double div, double add) {
    const struct tensor_format *f = t->format;
    uint8_t *bytes = malloc(t->n_bytes);
    float x[32];

    if (!bytes || f->block > ARRAY_SIZE(x))
        die("its format cannot be written", t->name);
    for (size_t at = 0; at < t->n_bytes; at += f->block_bytes) {
        for (uint32_t i = 0; i < f->block; i++)
            x[i] = (float)(pcg_normal(g) * mul / div + add);
        put_block(f->type, x, bytes + at, t->name);
    }
    write_tensor(t, bytes);
    free(bytes);
}

static void give(const struct tensor *t, const char *hex) {
    uint8_t *bytes = malloc(t->n_bytes);

    if (!bytes || strlen(hex) != 2 * t->n_bytes)
        die("has another size", t->name);
    for (size_t i = 0; i < t->n_bytes; i++)
        if (sscanf(hex + 2 * i, "%2hhx", &bytes[i]) != 1)
            die("has no hexadecimal digits", t->name);
    write_tensor(t, bytes);
    free(bytes);
}

static void obey(const char *line, const struct gguf *model, struct pcg *g) {
    static char name[64], hex[1 << 16];
    uint64_t s[4], n;
    double mul, div, add;

    if (sscanf(line, "state %" SCNx64 " %" SCNx64 " %" SCNx64 " %" SCNx64, &s[0], &s[1], &s[2],
               &s[3]) == 4) {
        g->state = (u128)s[0] << 64 | s[1];
        g->inc = (u128)s[2] << 64 | s[3];
    } else if (sscanf(line, "skip %" SCNu64, &n) == 1) {
        while (n-- > 0)
            pcg_next(g);
    } else if (strcmp(line, "ties away\n") == 0) {
        ties_away = true;
    } else if (sscanf(line, "given %63s %65535s", name, hex) == 2 && gguf_find(model, name)) {
        give(gguf_find(model, name), hex);
    } else if (sscanf(line, "normal %63s %lf %lf %lf", name, &mul, &div, &add) == 4 &&
               gguf_find(model, name)) {
        fill(gguf_find(model, name), g, mul, div, add);
    } else {
        die("is no line of draws, or of a tensor that there is not", line);
    }
}

int main(int argc, char **argv) {
    struct gguf *model = NULL;
    struct err err = {0};
    struct pcg g = {0};
    char *line = NULL;
    size_t room = 0;

    if (argc < 3)
        die("usage: make_model DRAWS MODEL.gguf...", "arguments");
    files = argv + 2;
    n_files = argc - 2;
    ziggurat_init();
    if (gguf_open(&model, files[0], &err) < 0)
        die(err.message, files[0]);
    FILE *draws = fopen(argv[1], "r");
    if (!draws)
        die("cannot be read", argv[1]);
    while (getline(&line, &room, draws) > 0)
        obey(line, model, &g);
    free(line);
    fclose(draws);
    gguf_free(model);
    return 0;
}
