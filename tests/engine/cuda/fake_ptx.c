#include "tests/engine/cuda/fake_ptx.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>

#include "tests/engine/ptx/ptx.h"

static bool is_open;

/* Appends a report of the code that has run to the file WEFT_PTX_REPORT: one line for each
 * kernel. */
static void report(void) {
    FILE *f = fopen(getenv("WEFT_PTX_REPORT"), "a");

    if (!f || flock(fileno(f), LOCK_EX) != 0) /* several processes of a test end at the same time */
        abort();
    ptx_report(f);
    fclose(f);
}

void fake_ptx_open(void) {
    const char *folder = getenv("WEFT_PTX");

    if (!folder || !*folder)
        return;
    ptx_read_folder(folder);
    fake_cuda.major = ptx_target() / 10;
    fake_cuda.minor = ptx_target() % 10;
    is_open = true;
    if (getenv("WEFT_PTX_REPORT"))
        atexit(report);
}

bool fake_ptx_launch(const struct op *launch) {
    const struct simt_kernel *k = launch->from;

    if (!is_open)
        return false;
    struct ptx_kernel *kernel = ptx_find(k->name);
    if (!kernel) {
        fprintf(stderr, "fake cuda: no PTX of kernel %s\n", k->name);
        abort();
    }
    /* the argument, and the second parameter of KERNEL (device.cuh) behind it */
    _Alignas(16) uint8_t args[ARGS_MAX + sizeof(uint32_t)];
    size_t n = (k->args_size + 3) & ~(size_t)3;
    memcpy(args, launch->args, k->args_size);
    memcpy(args + n, &launch->how, sizeof(uint32_t));
    ptx_run(kernel, &(struct ptx_launch){
                        .grid_x = launch->grid.x,
                        .grid_y = launch->grid.y,
                        .n_threads = k->n_threads,
                        .shared_bytes = launch->shared,
                        .args = args,
                        .args_bytes = n + sizeof(uint32_t),
                        .early = ptx_target() >= 90, /* on these devices any launch may be early */
                        .order = fake_cuda.order ? fake_cuda.order + fake_cuda.n_launches : 0,
                        .other_wgmma = fake_cuda.other_wgmma,
                    });
    return true;
}
