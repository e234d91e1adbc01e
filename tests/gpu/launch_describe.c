/* launch_describe - describes kernels of the CUDA runtime (launches.h). */

#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "tests/gpu/launches.h"

/* Copies the function's name from a name that the C++ compiler has encoded: _ZN, _ZL or _Z, then
 * its length and the name. */
static void plain_name(const char *encoded, char name[64]) {
    const char *p = encoded;
    char *end;
    size_t n;

    if (strncmp(p, "_Z", 2) == 0)
        p += 2;
    while (*p == 'L' || *p == 'N')
        p++;
    n = strtoul(p, &end, 10);
    if (n == 0 || n > strlen(end)) {
        end = (char *)encoded;
        n = strlen(encoded);
    }
    n = MIN(n, 63);
    memcpy(name, end, n);
    name[n] = 0;
}

void launch_describe(const void *kernel, char name[64], size_t *args_size, uint32_t *n_registers) {
    struct cudaFuncAttributes a = {0};
    const char *encoded = "";
    size_t offset = 0;

    *args_size = LAUNCH_ARGS;
    if (cudaFuncGetName(&encoded, kernel) == cudaSuccess)
        plain_name(encoded, name);
    cudaFuncGetParamInfo(kernel, 0, &offset, args_size);
    if (cudaFuncGetAttributes(&a, kernel) == cudaSuccess)
        *n_registers = (uint32_t)a.numRegs;
}
