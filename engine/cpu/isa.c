#include "engine/cpu/cpu.h"

#include <string.h>

#ifdef CPU_X86

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

#endif

static bool has_any(void) {
    return true;
}

static const struct isa { /* best first */
    const char *name, *needs;
    bool (*usable)(void);
    const struct cpu_kernels *kernels;
} isas[] = {
#ifdef CPU_X86
    {"avx512", "AVX-512 with VNNI and VBMI", has_avx512, &cpu_kernels_avx512},
    {"avx2", "AVX2, FMA and F16C", has_avx2, &cpu_kernels_avx2},
#endif
    {"generic", "", has_any, &cpu_kernels_generic},
};

/* All instruction sets give the same bits, so "auto" may take the best. */
const struct cpu_kernels *isa_find(const char *name, struct err *err) {
    bool best = !name || strcmp(name, "auto") == 0;

    for (size_t i = 0; i < ARRAY_SIZE(isas); i++) {
        if (!best && strcmp(name, isas[i].name) != 0)
            continue;
        if (isas[i].usable())
            return isas[i].kernels;
        if (!best) {
            err_set(err, 0, "isa", "this machine cannot run isa \"%s\": it lacks %s", name,
                    isas[i].needs);
            return NULL;
        }
    }
    err_set(err, 0, "isa", "isa \"%s\" is unknown or not of this machine", name);
    return NULL;
}
