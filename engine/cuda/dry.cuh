#pragma once

/*
 * dry - the passes of kernels with a dry run (WEFT_CUDA_DRY=1, an experiment). A multiprocessor
 * fetches instructions when it executes them for the first time. In a kernel that is launched early
 * the code behind wait_for_previous() therefore runs twice: a dry pass before the wait, whose
 * operands are zeros or memory that no kernel changes, and which writes nothing to device memory;
 * then the live one by the same instructions. Only code for Hopper has dry runs.
 */

#include "engine/cuda/device.cuh"

#if defined(WEFT_SIMT) || __CUDA_ARCH__ == 900
#define WEFT_DRY 1
#else
#define WEFT_DRY 0
#endif

/* The passes of a kernel without a dry run: one. */
struct LivePass {
    static constexpr uint32_t dry = 0;

    MEMBER void start() {}
    static MEMBER bool is_live() {
        return true;
    }
    static MEMBER bool ends() {
        return true;
    }
};

/* Two passes, of which the first is dry. */
struct DryPass {
    static constexpr uint32_t dry = 1;

    /* 0 or 1; the compiler must not know it, or it would write the code twice */
    uint32_t live;

    /* @skip 1: there is no dry pass. */
    MEMBER void start(uint32_t skip = 0) {
        live = anew(skip);
    }
    MEMBER bool is_live() const {
        return live != 0;
    }
    /* Returns true after the live pass. */
    MEMBER bool ends() {
        bool end = is_live();

        live = anew(1);
        return end;
    }
};
