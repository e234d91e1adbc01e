/*
 * api - implements struct cuda_api (cuda_api.h) with the CUDA runtime. Entries return the runtime's
 * error code. Most are one call; the others explain their decisions.
 */

#include <assert.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdio.h>

#include "base/memory.h"
#include "engine/cuda/cuda_api.h"
#include "engine/cuda/kernels.h"

/* Handle of the driver's library, which stays open. The runtime opens the driver by its name alone,
 * but containers often have it in a folder that only an environment variable names. Once a library
 * with that name is loaded, from whatever folder, the linker gives the runtime this one. */
static void *driver;

/* Opens the driver: from the linker's folders, else from where containers and distributions have
 * it. */
static void find_driver(void) {
    static const char *const names[] = {"libcuda.so.1",
                                        "/usr/local/nvidia/lib64/libcuda.so.1",
                                        "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
                                        "/usr/lib/aarch64-linux-gnu/libcuda.so.1",
                                        "/usr/lib64/libcuda.so.1",
                                        "/usr/lib/wsl/lib/libcuda.so.1",
                                        "/run/opengl-driver/lib/libcuda.so.1"};

    for (size_t i = 0; i < sizeof(names) / sizeof(*names) && !driver; i++)
        driver = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
}

static int count(int *n) {
    find_driver();
    return (int)cudaGetDeviceCount(n);
}

static int versions(int *driver, int *runtime) {
    cudaError_t r = cudaDriverGetVersion(driver);

    return (int)(r == cudaSuccess ? cudaRuntimeGetVersion(runtime) : r);
}

/* Describes a device. One without a PCI address gets "". */
static int describe(int device, struct cuda_device *out) {
    struct cudaDeviceProp p;
    cudaError_t r = cudaGetDeviceProperties(&p, device);

    if (r != cudaSuccess)
        return (int)r;
    *out = (struct cuda_device){
        .major = p.major,
        .minor = p.minor,
        .n_multiprocessors = p.multiProcessorCount,
        .bytes = p.totalGlobalMem,
        .shared_bytes =
            p.sharedMemPerMultiprocessor < SHARED_USED ? p.sharedMemPerMultiprocessor : SHARED_USED,
        .block_bytes = p.sharedMemPerBlockOptin,
        .integrated = p.integrated,
    };
    r = cudaDeviceGetPCIBusId(out->address, sizeof(out->address), device);
    if (r != cudaSuccess)
        out->address[0] = 0;
    snprintf(out->name, sizeof(out->name), "%.*s", (int)sizeof(out->name) - 1, p.name);
    return 0;
}

/* Defines an entry that is one call of the runtime. */
#define CALL(NAME, PARAMETERS, CALLED)                                                             \
    static int NAME PARAMETERS {                                                                   \
        return (int)CALLED;                                                                        \
    }
CALL(use, (int device), cudaSetDevice(device))
CALL(memory, (size_t * n_free, size_t *n_total), cudaMemGetInfo(n_free, n_total))
CALL(alloc, (void **d, size_t n), cudaMalloc(d, n))
CALL(release, (void *d), cudaFree(d))
CALL(alloc_host, (void **p, size_t n), cudaMallocHost(p, n))
CALL(release_host, (void *p), cudaFreeHost(p))
CALL(stream_new, (void **stream),
     cudaStreamCreateWithFlags((cudaStream_t *)stream, cudaStreamNonBlocking))
CALL(stream_free, (void *stream), cudaStreamDestroy(stream))
CALL(stream_wait, (void *stream), cudaStreamSynchronize(stream))
CALL(event_new, (void **event),
     cudaEventCreateWithFlags((cudaEvent_t *)event, cudaEventDisableTiming))
CALL(event_free, (void *event), cudaEventDestroy(event))
CALL(event_record, (void *event, void *stream), cudaEventRecord(event, stream))
CALL(event_query, (void *event), cudaEventQuery(event))
CALL(timer_new, (void **event), cudaEventCreate((cudaEvent_t *)event))
CALL(event_wait, (void *event, void *stream), cudaStreamWaitEvent(stream, event, 0))
CALL(fill, (void *d, int byte, size_t n, void *stream), cudaMemsetAsync(d, byte, n, stream))
CALL(host_join, (void *stream, const struct cuda_side *side),
     cudaStreamWaitEvent(stream, side->joined, 0))
CALL(capture_begin, (void *stream),
     cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal))
CALL(graph_launch, (void *graph, void *stream), cudaGraphLaunch(graph, stream))
CALL(graph_free, (void *graph), cudaGraphExecDestroy(graph))

static int elapsed(void *from, void *to, float *us) {
    cudaError_t r = cudaEventElapsedTime(us, (cudaEvent_t)from, (cudaEvent_t)to);

    *us *= 1000;
    return (int)r;
}

static int copy(void *to, const void *from, size_t n, enum cuda_direction dir, void *stream) {
    enum cudaMemcpyKind kind =
        dir == CUDA_TO_DEVICE ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost;

    return (int)cudaMemcpyAsync(to, from, n, kind, stream);
}

/* Enables direct access from @device to the memory of @other. *direct tells whether it is possible;
 * an impossible path is not an error. Access holds for the whole process, so another engine may
 * already have enabled it. */
static int reach(int device, int other, bool *direct) {
    int can = 0;
    cudaError_t r = cudaDeviceCanAccessPeer(&can, device, other);

    if (r == cudaSuccess && can)
        r = cudaDeviceEnablePeerAccess(other, 0);
    if (r == cudaErrorPeerAccessAlreadyEnabled)
        r = cudaGetLastError() == r ? cudaSuccess : r;
    *direct = r == cudaSuccess && can;
    return (int)r;
}

/* Allows @kernel @bytes of dynamic shared memory. The runtime loads a kernel at its first use (lazy
 * loading); asking for its attributes is the documented way to load it now. */
static int allow_shared(const void *kernel, uint32_t bytes) {
    struct cudaFuncAttributes a;
    cudaError_t r = cudaFuncGetAttributes(&a, kernel);

    if (r == cudaSuccess)
        r = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (r == cudaSuccess)
        r = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                 cuda_carveout(bytes));
    return (int)r;
}

/* Launches a kernel, which gets @how, too; LAUNCH_EARLY allows programmatic dependent launch. */
static int launch(const void *kernel, uint32_t grid_x, uint32_t grid_y, uint32_t n_threads,
                  uint32_t shared, const void *args, uint32_t how, void *stream) {
    cudaLaunchAttribute attribute = {.id = cudaLaunchAttributeProgrammaticStreamSerialization};
    cudaLaunchConfig_t config = {
        .gridDim = {grid_x, grid_y, 1},
        .blockDim = {n_threads, 1, 1},
        .dynamicSmemBytes = shared,
        .stream = stream,
        .attrs = &attribute,
        .numAttrs = how & LAUNCH_EARLY,
    };
    void *list[] = {(void *)args, &how};

    attribute.val.programmaticStreamSerializationAllowed = 1;
    return (int)cudaLaunchKernelExC(&config, kernel, list);
}

/* Calls @fn on a thread of the runtime after the work in @stream, on a side stream. Later work in
 * @stream does not wait for it until host_join(). */
static int host_call(void (*fn)(void *ctx), void *ctx, void *stream, const struct cuda_side *side) {
    cudaError_t r = cudaEventRecord(side->forked, stream);

    r = r == cudaSuccess ? cudaStreamWaitEvent(side->stream, side->forked, 0) : r;
    r = r == cudaSuccess ? cudaLaunchHostFunc(side->stream, fn, ctx) : r;
    return (int)(r == cudaSuccess ? cudaEventRecord(side->joined, side->stream) : r);
}

/* Ends the capture and sets *graph to an executable graph; to NULL on an error, after which the
 * stream can be used as before. The graph is uploaded here: its first launch would do that, and if
 * there was no memory then, the step would be lost. */
static int capture_end(void *stream, void **graph) {
    cudaGraph_t g = NULL;
    cudaGraphExec_t exec = NULL;
    cudaError_t r = cudaStreamEndCapture(stream, &g);

    if (r == cudaSuccess)
        r = cudaGraphInstantiate(&exec, g, 0);
    if (r == cudaSuccess)
        r = cudaGraphUpload(exec, stream);
    if (r != cudaSuccess && exec)
        cudaGraphExecDestroy(exec);
    if (g)
        cudaGraphDestroy(g);
    if (r != cudaSuccess)
        cudaGetLastError(); /* the caller goes on without a graph, so the error is cleared */
    *graph = r == cudaSuccess ? exec : NULL;
    return (int)r;
}

/* Sets *made_for to the architecture of the PTX from which the kernel was compiled. It decides
 * which instructions the kernel has, whatever the device supports. Code that the driver compiles
 * keeps the architecture of its PTX. */
static int check_kernel(const void *kernel, int *made_for) {
    struct cudaFuncAttributes a = {0};
    cudaError_t r = cudaFuncGetAttributes(&a, kernel);

    *made_for = a.ptxVersion;
    return (int)r;
}

/* Returns the text of an error. The runtime reports a missing driver as one that is too old. */
static const char *text(int error) {
    if (error == cudaErrorInsufficientDriver && !driver)
        return "libcuda.so.1, the driver's library, is not found";
    return cudaGetErrorString((cudaError_t)error);
}

static_assert((int)CUDA_OLD_DRIVER == cudaErrorInsufficientDriver &&
                  (int)CUDA_BUSY == cudaErrorDevicesUnavailable &&
                  (int)CUDA_SYSTEM_CALL == cudaErrorOperatingSystem &&
                  (int)CUDA_NOT_READY == cudaErrorNotReady &&
                  (int)CUDA_FABRIC == cudaErrorSystemNotReady &&
                  (int)CUDA_OTHER_DRIVER == cudaErrorSystemDriverMismatch &&
                  (int)CUDA_NOT_COMPATIBLE == cudaErrorCompatNotSupportedOnDevice &&
                  (int)CUDA_MPS == cudaErrorMpsConnectionFailed &&
                  (int)CUDA_UNKNOWN == cudaErrorUnknown,
              "the runtime's numbers");

#define ENTRY(NAME) .NAME = NAME
static const struct cuda_api real = {
    ENTRY(count),         ENTRY(versions),     ENTRY(describe),
    ENTRY(use),           ENTRY(memory),       .host_memory = memory_available,
    ENTRY(alloc),         ENTRY(release),      ENTRY(alloc_host),
    ENTRY(release_host),  ENTRY(stream_new),   ENTRY(stream_free),
    ENTRY(stream_wait),   ENTRY(event_new),    ENTRY(event_free),
    ENTRY(event_record),  ENTRY(event_query),  ENTRY(timer_new),
    ENTRY(elapsed),       ENTRY(event_wait),   ENTRY(copy),
    ENTRY(fill),          ENTRY(reach),        ENTRY(allow_shared),
    ENTRY(launch),        ENTRY(host_call),    ENTRY(host_join),
    ENTRY(capture_begin), ENTRY(capture_end),  ENTRY(graph_launch),
    ENTRY(graph_free),    ENTRY(check_kernel), ENTRY(text)};

const struct cuda_api *cuda_api(void) {
    return &real;
}
