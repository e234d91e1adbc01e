/* trace - the host's side of a trace (trace.h); part of weft-cuda.so with WEFT_TRACE alone. */

#include "engine/cuda/trace.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

#define TRACE_FILES 64u

/* Variables of the files of kernels that point to the ring. */
static const void *trace_file[TRACE_FILES];
static uint32_t n_files;
static struct trace_ring *ring;

void trace_add(const void *variable);

/* Adds a file of kernels; each calls it when the module is loaded. */
void trace_add(const void *variable) {
    if (n_files == TRACE_FILES)
        abort();
    trace_file[n_files++] = variable;
}

static int trace_start(void) {
    cudaError_t r = cudaSuccess;

    if (!ring)
        r = cudaMalloc((void **)&ring, sizeof(*ring));
    if (r == cudaSuccess)
        r = cudaMemset(ring, 0, sizeof(ring->n));
    for (uint32_t i = 0; i < n_files && r == cudaSuccess; i++)
        r = cudaMemcpyToSymbol(trace_file[i], &ring, sizeof(ring), 0, cudaMemcpyHostToDevice);
    return (int)r;
}

static int trace_read(struct trace_slot *slot, uint32_t *n) {
    uint64_t all = 0;
    cudaError_t r = cudaMemcpy(&all, &ring->n, sizeof(all), cudaMemcpyDeviceToHost);
    uint32_t first = 0;

    if (all > TRACE_SLOTS)
        first = (uint32_t)(all % TRACE_SLOTS);
    *n = (uint32_t)(all > TRACE_SLOTS ? TRACE_SLOTS : all);
    if (r == cudaSuccess)
        r = cudaMemcpy(slot, ring->slot + first, (*n - first) * sizeof(*slot),
                       cudaMemcpyDeviceToHost);
    if (r == cudaSuccess && first)
        r = cudaMemcpy(slot + *n - first, ring->slot, first * sizeof(*slot),
                       cudaMemcpyDeviceToHost);
    return (int)r;
}

extern const struct trace_calls weft_trace;
const struct trace_calls weft_trace = {trace_start, trace_read};
