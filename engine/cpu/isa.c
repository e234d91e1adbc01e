#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/mathx.h"
#include "engine/cpu/cpu.h"
#include "engine/engine.h"
#include "engine/formats/quant.h"
#ifdef CPU_X86
#include <cpuid.h>
#include <sys/syscall.h>
#elif defined CPU_ARM
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

uint8_t cpu_iq2_grid[8][256] __attribute__((aligned(64)));
uint8_t cpu_iq2_runs[256][8] __attribute__((aligned(64)));
uint8_t cpu_e4m3[2][128] __attribute__((aligned(64)));
bool cpu_shuffles_beside;

__attribute__((constructor)) static void fill_iq2_grid(void) {
    for (unsigned j = 0; j < 8; j++)
        for (unsigned i = 0; i < 256; i++) {
            cpu_iq2_runs[i][j] = (uint8_t)blk_iq2_size(quant_grids.iq2_xxs[i] >> (2 * j) & 3);
            cpu_iq2_grid[j][i] = (uint8_t)(64 + cpu_iq2_runs[i][j]);
        }
}

__attribute__((constructor)) static void fill_e4m3(void) {
    for (unsigned i = 0; i < 128; i++) {
        uint16_t v = mx_float_to_bf16(mx_e4m3_to_float((uint8_t)i));

        cpu_e4m3[0][i] = (uint8_t)v;
        cpu_e4m3[1][i] = (uint8_t)(v >> 8);
    }
}

#ifdef CPU_X86

/* Intel's cores have one unit for shuffles of 512 bits, which is one of the two for products. */
__attribute__((constructor)) static void find_shuffles(void) {
    __builtin_cpu_init();
    cpu_shuffles_beside = !__builtin_cpu_is("intel");
}

static bool has_avx2(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("f16c") && __builtin_cpu_supports("bmi2");
}

static bool has_avx512(void) {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512vnni") &&
           __builtin_cpu_supports("avx512vbmi");
}

static bool has_avx512bf16(void) {
    return has_avx512() && __builtin_cpu_supports("avx512bf16");
}

/* Returns true if the CPU has AMX with int8 and the kernel permits this process to use the tile
 * registers; this call asks for the permission, which lasts as long as the process. */
static bool has_amx(void) {
    enum { REQ_XCOMP_PERM = 0x1023, XTILEDATA = 18, AMX_TILE = 1 << 24, AMX_INT8 = 1 << 25 };
    unsigned a, b, c, d;

    return has_avx512bf16() && __get_cpuid_count(7, 0, &a, &b, &c, &d) &&
           (d & (AMX_TILE | AMX_INT8)) == (AMX_TILE | AMX_INT8) &&
           syscall(SYS_arch_prctl, REQ_XCOMP_PERM, XTILEDATA) == 0;
}

#elif defined CPU_ARM

static bool has_dotprod(void) {
    return getauxval(AT_HWCAP) & HWCAP_ASIMDDP;
}

static bool has_i8mm(void) {
    return has_dotprod() && getauxval(AT_HWCAP2) & HWCAP2_I8MM;
}

#endif

static bool has_any(void) {
    return true;
}

static const struct isa { /* best first */
    const char *name, *needs;
    bool (*usable)(void);
    /* NULL: not in this build (meson option isa) */
    const struct cpu_kernels *kernels;
} isas[] = {
#ifdef CPU_X86
    {"amx",
     "AVX-512 with VNNI, VBMI and BF16, and AMX with int8 (or the system does not permit its use)",
     has_amx, KERNELS_AMX},
    {"avx512bf16", "AVX-512 with VNNI, VBMI and BF16", has_avx512bf16, KERNELS_AVX512BF16},
    {"avx512", "AVX-512 with VNNI and VBMI", has_avx512, KERNELS_AVX512},
    {"avx2", "AVX2, FMA and F16C", has_avx2, KERNELS_AVX2},
#elif defined CPU_ARM
    {"i8mm", "FEAT_DotProd and FEAT_I8MM", has_i8mm, KERNELS_I8MM},
    {"dotprod", "FEAT_DotProd", has_dotprod, KERNELS_DOTPROD},
    {"neon", "", has_any, KERNELS_NEON},
#endif
    {"generic", "", has_any, KERNELS_GENERIC},
};

/* Returns true if this machine can run the kernels of a row, and computes as they expect. */
static bool isa_runs(const struct isa *isa) {
    return isa->usable() && (!isa->kernels->is_exact || isa->kernels->is_exact());
}

const struct cpu_kernels *isa_find(const char *name, struct err *err) {
    bool best = !name || strcmp(name, "auto") == 0;

    for (size_t i = 0; i < ARRAY_SIZE(isas); i++) {
        if (!isas[i].kernels || (!best && strcmp(name, isas[i].name) != 0))
            continue;
        if (isa_runs(&isas[i]))
            return isas[i].kernels;
        if (!best) {
            err_set(err, 0, "isa", "this machine cannot run isa \"%s\": it lacks %s", name,
                    isas[i].needs);
            return NULL;
        }
    }
    if (best)
        err_set(err, 0, "isa",
                "weftd was built for another processor: build it here, or with -Disa=all");
    else
        err_set(err, 0, "isa", "isa \"%s\" is unknown, or this weftd was built without it", name);
    return NULL;
}

int engine_check_isa(const struct engine_opts *opts, struct err *err) {
    bool on_cpu = strcmp(opts->backend, "cpu") == 0 ||
                  (strcmp(opts->backend, "auto") == 0 && access("/dev/nvidiactl", F_OK) < 0);

    return !on_cpu || isa_find(opts->isa, err) ? 0 : -EINVAL;
}
