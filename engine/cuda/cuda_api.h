#pragma once

/*
 * cuda_api - the calls of the CUDA runtime that the backend makes, as a table. Tests replace it by
 * a runtime that runs kernels on the CPU and fails on demand (tests/engine/cuda/fake_api.c).
 *
 * Every function returns 0 or the runtime's error number. Pointers named d are addresses on the
 * device.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Direction of a copy. */
enum cuda_direction { CUDA_TO_DEVICE, CUDA_TO_HOST };

/* Numbers of the runtime's errors. */
enum {
    /* or there is no driver */
    CUDA_OLD_DRIVER = 35,
    /* another process uses the device exclusively */
    CUDA_BUSY = 46,
    /* a system call of the driver failed */
    CUDA_SYSTEM_CALL = 304,
    /* result of event_query(), not an error */
    CUDA_NOT_READY = 600,
    /* the switches between devices are not yet set up */
    CUDA_FABRIC = 802,
    /* libcuda does not match the loaded kernel module */
    CUDA_OTHER_DRIVER = 803,
    /* nor does it support this device with another module */
    CUDA_NOT_COMPATIBLE = 804,
    /* another process that shares the device does not answer */
    CUDA_MPS = 805,
    CUDA_UNKNOWN = 999,
};

/*
 * Kernels whose blocks fit request 196 KiB of shared memory on a multiprocessor that has 228 KiB
 * for it and the L1 cache. The cache gets the rest, 32 KiB, and its own 28 KiB: up to six rows of
 * 4096 activations stay there while matvec reads them for each of its row tiles, and three blocks
 * of matvec still fit (Q4_K).
 */
#define SHARED_MOST (228u << 10)
#define SHARED_USED (196u << 10)

/* Returns the part of SHARED_MOST, in percent, that a kernel with @bytes of dynamic shared memory
 * requests. The driver takes the next larger size that the device has, so the percentage is rounded
 * down: one percent more than 196 KiB would mean 228. Devices with fewer sizes (164 KiB, 100 KiB)
 * take their largest one. */
static inline int cuda_carveout(uint32_t bytes) {
    if (bytes >= SHARED_USED)
        return 100;
    return (int)(100 * SHARED_USED / SHARED_MOST);
}

/* Properties of a device. */
struct cuda_device {
    /* PCI address: domain:bus:device.function */
    char name[128], address[16];
    int major, minor, n_multiprocessors;
    /* size of memory; shared memory of a multiprocessor that kernels may use */
    size_t bytes, shared_bytes;
    /* most shared memory of a block */
    size_t block_bytes;
    /* the device uses host memory */
    bool integrated;
    /* result of check_kernel(): compute capability of the kernels' code, the device's or an older
     * one */
    int made_for;
};

/* A second stream, and the events at which it leaves the first one and joins it again. */
struct cuda_side {
    void *stream, *forked, *joined;
};

/* Every call returns 0 or an error of the runtime, which text() describes. Streams, events and
 * graphs are the runtime's own. Only stream_wait() waits for the device. */
struct cuda_api {
    int (*count)(int *n);
    /* Versions of CUDA, 1000 times the major plus 10 times the minor number: of the driver (0: no
     * driver), and of this runtime. */
    int (*versions)(int *driver, int *runtime);
    int (*describe)(int device, struct cuda_device *out);
    /* for the calling thread */
    int (*use)(int device);
    int (*memory)(size_t *n_free, size_t *n_total);
    /* Returns the bytes of the host's memory that are available. */
    uint64_t (*host_memory)(void);
    int (*alloc)(void **d, size_t n);
    int (*release)(void *d);
    /* pinned */
    int (*alloc_host)(void **p, size_t n);
    int (*release_host)(void *p);
    int (*stream_new)(void **stream);
    int (*stream_free)(void *stream);
    int (*stream_wait)(void *stream);
    int (*event_new)(void **event);
    int (*event_free)(void *event);
    int (*event_record)(void *event, void *stream);
    int (*event_query)(void *event);
    /* An event that records the time; elapsed() gives the microseconds between two that were
     * reached. */
    int (*timer_new)(void **event);
    int (*elapsed)(void *from, void *to, float *us);
    /* Makes later work in the stream wait for the event's last record so far, on any device. */
    int (*event_wait)(void *event, void *stream);
    /* Enqueue work in the stream. */
    int (*copy)(void *to, const void *from, size_t n, enum cuda_direction dir, void *stream);
    int (*fill)(void *d, int byte, size_t n, void *stream);
    /* Enables access of @device, the current one, to the memory of @other. *direct tells whether
     * its kernels may read that memory. */
    int (*reach)(int device, int other, bool *direct);
    /* Loads a kernel's code on the current device and allows launches with up to @bytes of shared
     * memory. Otherwise the first launch would load it, possibly when memory is full or during a
     * capture. */
    int (*allow_shared)(const void *kernel, uint32_t bytes);
    /* @shared: bytes of dynamic_shared(). @args: the kernel's only argument. @how: enum launch_how
     * (kernels.h). */
    int (*launch)(const void *kernel, uint32_t grid_x, uint32_t grid_y, uint32_t n_threads,
                  uint32_t shared, const void *args, uint32_t how, void *stream);
    /* Calls @fn on a thread of the runtime after all work in the stream so far, whose writes to
     * pinned memory it sees; @fn must not call this table. Later work in the stream may run at the
     * same time, until host_join(); work after that sees the writes of @fn. Each call must be
     * joined before the next one. */
    int (*host_call)(void (*fn)(void *ctx), void *ctx, void *stream, const struct cuda_side *side);
    int (*host_join)(void *stream, const struct cuda_side *side);
    /* Records launches and host calls between the two instead of executing them, so that they can
     * be launched repeatedly as one graph. A stream of any device that waits for an event recorded
     * in between is captured, too, and must be waited for before the end. Apart from these, only
     * records, waits and use() may be called. capture_end() must follow each successful
     * capture_begin(), with the stream's device current; *graph is NULL if it fails, as it does if
     * there is no memory for the graph on the device.
     * graph_launch(): @stream belongs to that device; streams of other devices are not ordered with
     * the graph. */
    int (*capture_begin)(void *stream);
    int (*capture_end)(void *stream, void **graph);
    int (*graph_launch)(void *graph, void *stream);
    int (*graph_free)(void *graph);
    /* Returns 0 if the kernel has code for the current device, or an error. *made_for: the compute
     * capability that the code was compiled for, 10 times the major plus the minor number. */
    int (*check_kernel)(const void *kernel, int *made_for);
    const char *(*text)(int error);
};

/* Returns the runtime's table (api.c), or the tests'. */
const struct cuda_api *cuda_api(void);
