/*
 * matmul_wgmma - decides when products are wgmma's (matmul_wgmma.cu). Their rows are packed in
 * another order, so the decision holds for all matrices of a step, without those of experts and of
 * heads of latent attention, and without the router, whose rows the experts take too.
 */

#include "engine/cuda/cuda.h"

#include <stdlib.h>

/* WEFT_CUDA_WGMMA=0: never. */
int wgmma_open(struct be *b) {
    const char *said = getenv("WEFT_CUDA_WGMMA");
    uint32_t most = 0, most_64 = 0;

    for (uint32_t f = 0; f < TILE_FORMATS; f++) {
        most = MAX(most, wgmma_shared(WGMMA_ROWS, f));
        most_64 = MAX(most_64, wgmma_shared(MATMUL_COLUMNS, f));
    }
    b->products.wgmma = matmul_wgmma_built && b->device.major == 9 && b->device.minor == 0 &&
                        b->device.shared_bytes > most && !(said && *said == '0');
    if (!b->products.wgmma)
        return 0;
    int r = cuda_check(b, b->api->allow_shared(kernel_matmul_wgmma, most), "cudaFuncSetAttribute");
    return r < 0 ? r
                 : cuda_check(b, b->api->allow_shared(kernel_matmul_wgmma_64, most_64),
                              "cudaFuncSetAttribute");
}

bool wgmma_takes(const struct be *b, uint32_t n_rows) {
    return b->products.wgmma && n_rows > MATVEC_ROWS;
}
