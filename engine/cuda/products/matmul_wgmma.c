/*
 * matmul_wgmma - decides when products are wgmma's (matmul_wgmma.cu). Their rows are packed in
 * another order, so the decision holds for all matrices of a step, without those of experts and of
 * heads of latent attention, and without the router, whose rows the experts take too.
 */

#include "engine/cuda/cuda.h"

/* WEFT_CUDA_WGMMA=0: never. */
int wgmma_open(struct be *b) {
    uint32_t most = 0, most_64 = 0;

    for (uint32_t f = 0; f < TILE_FORMATS; f++) {
        most = MAX(most, wgmma_shared(WGMMA_ROWS, f));
        most_64 = MAX(most_64, wgmma_shared(MATMUL_COLUMNS, f));
    }
    b->products.wgmma = matmul_wgmma_built && b->device.major == 9 && b->device.minor == 0 &&
                        b->device.shared_bytes > most && cuda_wants("WGMMA");
    if (!b->products.wgmma)
        return 0;
    int e = b->api->allow_shared(kernel_matmul_wgmma, most);

    e = e ? e : b->api->allow_shared(kernel_matmul_wgmma_64, most_64);
    return cuda_check(b, e, "cudaFuncSetAttribute");
}

bool wgmma_takes(const struct be *b, uint32_t n_rows) {
    return b->products.wgmma && n_rows > MATVEC_ROWS;
}
