/* Describes kernels of the emulator (launches.h). */

#include <string.h>

#include "tests/engine/cuda/simt.h"
#include "tests/gpu/launches.h"

void launch_describe(const void *kernel, char name[64], size_t *args_size, uint32_t *n_registers) {
    const struct simt_kernel *k = kernel;

    strncpy(name, k->name, 63);
    *args_size = k->args_size;
    *n_registers = 0;
}
