/*
 * kernels - checks every kernel of the CUDA backend against double precision on the device of this
 * machine, and measures times.
 *
 * usage: kernels [--tiny | --bandwidth | --time | --one NAME | --hold | --help]
 *   --tiny       checks small shapes only, for the emulator and compute-sanitizer
 *   --bandwidth  prints the bandwidth of reading in GB/s
 *   --time       measures the matrix kernels with weights that do not fit into the cache; prints
 *                the time of reading these weights beside each time
 *   --one NAME   launches one kernel a few times with the shapes of an 8B model, for a profiler
 *   --hold       keeps a context until it is killed; other programs create theirs faster then
 *
 * Inputs are random with outliers. Outputs are filled with NaN before each run. The headers of this
 * folder that this file includes are its parts, one for each family of kernels.
 */

#include "engine/cuda/kernels.h"

#include <string.h>

#include "base/rng.h"
#include "engine/cuda/cuda_api.h"
#include "engine/formats/quant.h"
#include "engine/sampler.h"
#include "tests/gpu/bandwidth.h"
#include "tests/gpu/describe.h"
#include "tests/gpu/on_device.h"
#include "tests/gpu/report.h"
#include "tests/gpu/sampling.h"

/* Fills @x with random activations, one in a hundred of which is eight times as large. */
static void fill_floats(float *x, size_t n) {
    for (size_t i = 0; i < n; i++)
        x[i] = gauss() * (rng_below(&rng, 100) ? 1.0f : 8.0f);
}

/* Fills @p with @n random blocks of format @f: the scales of blocks are around 2^-6, all other bits
 * are random. */
static void fill_blocks(const struct tensor_format *f, uint8_t *p, size_t n) {
    for (size_t i = 0; i < n; i++, p += f->block_bytes) {
        uint32_t at[2] = {0, 0};
        uint16_t h = mx_float_to_half((float)(0.5 + rng_unit(&rng)) * 0x1p-6f);

        if (f->block == 1) {
            float x = gauss();
            uint32_t bits = f->type == TENSOR_F32    ? mx_bits_of(x)
                            : f->type == TENSOR_BF16 ? mx_bits_of(x) >> 16
                                                     : mx_float_to_half(x);
            memcpy(p, &bits, f->block_bytes);
            continue;
        }
        for (uint32_t k = 0; k < f->block_bytes; k++)
            p[k] = (uint8_t)(rng_next(&rng) >> 40);
        switch (f->type) {
        case TENSOR_MXFP4:
            p[0] = (uint8_t)(121 + p[0] % 3);
            continue;
        case TENSOR_NVFP4:
            for (int k = 0; k < 4; k++)
                p[k] = (uint8_t)(p[k] % 0x30); /* includes subnormal numbers */
            continue;
        case TENSOR_Q2_K:
            at[0] = 80, at[1] = 82;
            break;
        case TENSOR_Q3_K:
            at[0] = at[1] = 108;
            break;
        case TENSOR_TQ1_0:
            at[0] = at[1] = 52;
            break;
        case TENSOR_TQ2_0:
            at[0] = at[1] = 64;
            break;
        case TENSOR_IQ1_M: /* the half d is in the upper four bits of four scales */
            for (int k = 0; k < 4; k++)
                p[49 + 2 * k] = (uint8_t)((p[49 + 2 * k] & 0x0F) | (h >> (4 * k) & 15) << 4);
            continue;
        case TENSOR_Q6_K:
            at[0] = at[1] = 208;
            break;
        case TENSOR_Q4_1:
        case TENSOR_Q5_1:
        case TENSOR_Q4_K:
        case TENSOR_Q5_K:
            at[1] = 2;
            break;
        default:
            break;
        }
        memcpy(p + at[0], &h, 2);
        memcpy(p + at[1], &h, 2);
    }
}

#include "tests/gpu/attention.h"
#include "tests/gpu/clusters.h"
#include "tests/gpu/compressed.h"
#include "tests/gpu/experts.h"
#include "tests/gpu/latent.h"
#include "tests/gpu/matrices.h"
#include "tests/gpu/recurrent.h"
#include "tests/gpu/roles.h"
#include "tests/gpu/scan.h"
#include "tests/gpu/sharing.h"
#include "tests/gpu/sparse.h"
#include "tests/gpu/streams.h"
#include "tests/gpu/times.h"

/* Launches kernel @name a few times with the shapes of an 8B model; for another name the kernels of
 * attention. */
static void launch_one(const char *name) {
    enum { ONE_OUT = 24576 };
    static const struct {
        const char *name;
        enum kernel kernel;
        uint32_t n_rows;
    } products[] = {{"matvec", VEC, 1},
                    {"matmul_wide", WIDE, 64},
                    {"matmul_wgmma_64", WGMMA_SHARING, 64},
                    {"matmul_wgmma_join", WGMMA_JOINING, 64},
                    {"matmul_wgmma", WGMMA, 512}};

    open_device();
    for (size_t i = 0; i < ARRAY_SIZE(products); i++) {
        if (strcmp(name, products[i].name) != 0)
            continue;
        struct weights_on w = make_weights(TENSOR_Q4_K, ONE_OUT, 4096);
        struct inputs in = make_inputs(products[i].n_rows, 4096, 0);
        float *out = host_new((size_t)products[i].n_rows * ONE_OUT * sizeof(*out));

        for (int k = 0; k < 3; k++)
            multiply(&w, &in, products[i].n_rows, products[i].kernel, out);
        free(out);
        drop_inputs(&in);
        drop_weights(&w);
        return;
    }
    check_attention((struct page_shape){8, 128, 32, 16, 16, false}, 4, 2048, 40, 0);
}

/* Holds a context until the process is killed; other contexts are created faster meanwhile. */
static void hold(void) {
    open_device();
    printf("held\n");
    fflush(stdout);
    for (;;)
        pause();
}

static void print_bandwidth(const void *arg) {
    open_device();
    double best = measure_bandwidth();

    printf("%.0f\n", best * 1e-9);
    if (report_json())
        fprintf(report_json(),
                R"({"device": "%s", "read_gb_s": %g})"
                "\n",
                device.name, best * 1e-9);
}

static void check_sampling_alone(const void *arg) {
    open_device();
    check_sampling(*(const bool *)arg);
}

/* WEFT_BYTES is set for the emulated program of devices that multiply bytes. Its kernels of
 * attention are those of the other emulated program, which checks them. */
#ifdef WEFT_BYTES
#define WITH_ATTENTION false
#else
#define WITH_ATTENTION true
#endif

int main(int argc, char **argv) {
    bool tiny = argc > 1 && strcmp(argv[1], "--tiny") == 0;

    if (argc > 1 && strcmp(argv[1], "--help") == 0) {
        printf("usage: kernels [--tiny | --bandwidth | --time | --one NAME | --hold]\n");
        return 0;
    }
    if (argc > 1 && strcmp(argv[1], "--bandwidth") == 0) {
        report_alone("bandwidth", 60, print_bandwidth, NULL);
        return report_counts()->n_failed ? 1 : 0;
    }
    if (argc > 1 && strcmp(argv[1], "--hold") == 0)
        hold();
    if (argc > 2 && strcmp(argv[1], "--one") == 0) {
        launch_one(argv[2]);
        return 0;
    }
    if (argc > 1 && strcmp(argv[1], "--time") == 0) {
        report_rows("times", 30, TIME_CASES, time_all, NULL);
        return report_end("times");
    }
    check_matrices(tiny);
    check_roles(tiny);
    check_clusters(tiny);
    if (WITH_ATTENTION) {
        check_attentions(tiny);
        check_latents(tiny);
        check_all_sharing(tiny);
    }
    report_alone("experts", 60, check_expert_kernels, &tiny);
    report_alone("delta nets", 60, check_delta_kernels, &tiny);
    report_alone("short convolutions", 60, check_conv_kernels, &tiny);
    report_alone("Mamba-1", 60, check_scan_kernels, &tiny);
    report_alone("compressed keys", 60, check_compressed_kernels, &tiny);
    report_alone("residual streams", 60, check_stream_kernels, &tiny);
    report_alone("chosen keys", 60, check_chosen_keys, &tiny);
    report_alone("sampling", 60, check_sampling_alone, &tiny);
    return report_end("kernels");
}
