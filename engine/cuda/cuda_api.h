#pragma once

/*
 * cuda_api - the calls of the CUDA runtime that the backend makes, as a table: tests put another
 * one in its place, which runs kernels on the CPU and fails where it is told to
 * (tests/engine/cuda/fake_api.c).
 *
 * Every function returns 0 or the runtime's error number. Pointers named d are the device's.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Direction of a copy. */
enum cuda_direction { CUDA_TO_DEVICE, CUDA_TO_HOST };

/* Numbers of the runtime's errors. */
enum {
    CUDA_OLD_DRIVER = 35,      /* or none */
    CUDA_BUSY = 46,            /* the device is another process' alone */
    CUDA_SYSTEM_CALL = 304,    /* a system call of the driver failed */
    CUDA_NOT_READY = 600,      /* event_query(): not an error */
    CUDA_FABRIC = 802,         /* the switches between devices are not set up yet */
    CUDA_OTHER_DRIVER = 803,   /* libcuda is not that of the loaded module */
    CUDA_NOT_COMPATIBLE = 804, /* nor made for this device with another module */
    CUDA_MPS = 805,            /* a process that shares the device does not answer */
    CUDA_UNKNOWN = 999,
};

/*
 * Kernels that fit ask for 196 KiB of shared memory on a multiprocessor that has 228 KiB of it and
 * of L1 cache. The cache keeps the rest, 32 KiB and the 28 KiB that are always its own: up to six
 * rows of 4096 activations stay there while matvec reads them for each of its rows of tiles, and
 * three blocks of matvec still fit (Q4_K).
 */
#define SHARED_MOST (228u << 10)
#define SHARED_USED (196u << 10)

/* Returns the part of SHARED_MOST, in percent, that a kernel with @bytes of dynamic shared memory
 * asks for. The driver takes the next larger size that the device has, so the percentage is rounded
 * down: one percent more than 196 KiB would mean 228. Devices with fewer sizes (164 KiB, 100 KiB)
 * take their largest one. */
static inline int cuda_carveout(uint32_t bytes) {
    return bytes < SHARED_USED ? (int)(100 * SHARED_USED / SHARED_MOST) : 100;
}

/* Properties of a device, as the runtime gives them. */
struct cuda_device {
    char name[128], address[16]; /* on its bus: domain:bus:device.function */
    int major, minor, n_multiprocessors;
    size_t bytes, shared_bytes; /* size of memory; shared memory of a multiprocessor that is used */
    size_t block_bytes;         /* shared memory that a block may have */
    bool integrated;            /* it has no memory but the host's */
    int made_for; /* check_kernel(): what the kernels were compiled for, the device's family or an
                     older one */
};

/* A second stream, and where it leaves the first and comes back to it. */
struct cuda_side {
    void *stream, *forked, *joined;
};

/* Every call returns 0 or an error of the runtime, which text() describes. Streams, events and
 * graphs are the runtime's own. Only stream_wait() waits for the device. */
struct cuda_api {
    int (*count)(int *n);
    /* Versions of CUDA, 1000 times the major one plus 10 times the minor one: the one that the
     * driver knows (0: no driver), and the one of this runtime. */
    int (*versions)(int *driver, int *runtime);
    int (*describe)(int device, struct cuda_device *out);
    int (*use)(int device); /* by the calling thread */
    int (*memory)(size_t *n_free, size_t *n_total);
    /* Returns the bytes of the host's memory that are available. */
    uint64_t (*host_memory)(void);
    int (*alloc)(void **d, size_t n);
    int (*release)(void *d);
    int (*alloc_host)(void **p, size_t n); /* pinned */
    int (*release_host)(void *p);
    int (*stream_new)(void **stream);
    int (*stream_free)(void *stream);
    int (*stream_wait)(void *stream);
    int (*event_new)(void **event);
    int (*event_free)(void *event);
    int (*event_record)(void *event, void *stream);
    int (*event_query)(void *event);
    /* An event that keeps its time; microseconds from one to another, both reached. */
    int (*timer_new)(void **event);
    int (*elapsed)(void *from, void *to, float *us);
    /* Makes the work that follows in the stream wait for the event's last record so far, of any
     * device. */
    int (*event_wait)(void *event, void *stream);
    /* In stream order. */
    int (*copy)(void *to, const void *from, size_t n, enum cuda_direction dir, void *stream);
    int (*fill)(void *d, int byte, size_t n, void *stream);
    /* *direct: kernels of @device, which is used, read @other's memory from now on. */
    int (*reach)(int device, int other, bool *direct);
    /* The kernel's code comes to the device in use, as it else does when it is launched first,
     * where memory may be full or launches be captured; and it may be launched with up to @bytes
     * of shared memory. */
    int (*allow_shared)(const void *kernel, uint32_t bytes);
    /* @shared: bytes of dynamic_shared(). @args: the kernel's only argument. @early: its blocks may
     * start while the previous kernel still runs, for which it waits itself (device.cuh). */
    int (*launch)(const void *kernel, uint32_t grid_x, uint32_t grid_y, uint32_t n_threads,
                  uint32_t shared, const void *args, bool early, void *stream);
    /* Calls @fn on a thread of the runtime after all work in the stream so far, whose writes to
     * pinned memory it sees; @fn must not call this table. Later work in the stream may run at the
     * same time, until host_join(); work after that sees the writes of @fn. Each call must be
     * joined before the next one. */
    int (*host_call)(void (*fn)(void *ctx), void *ctx, void *stream, const struct cuda_side *side);
    int (*host_join)(void *stream, const struct cuda_side *side);
    /* Launches and host calls between the two are not done but kept, to be done again and again as
     * one. A stream, of any device, that waits for an event recorded in between is kept as well,
     * and must be waited for before the end. Nothing but these, records and waits, and use() may be
     * called. capture_end() must follow a begin that succeeded, with the device of the stream in
     * use; *graph is NULL when it fails. graph_launch(): @stream is of that device, and the streams
     * of the others know nothing of it. */
    int (*capture_begin)(void *stream);
    int (*capture_end)(void *stream, void **graph);
    int (*graph_launch)(void *graph, void *stream);
    int (*graph_free)(void *graph);
    /* Returns 0 if there is code of the kernel for the device in use, or why not. *made_for: the
     * compute capability that it was compiled for, 10 times the major one plus the minor one. */
    int (*check_kernel)(const void *kernel, int *made_for);
    const char *(*text)(int error);
};

/* The runtime's (api.c), or the tests'. */
const struct cuda_api *cuda_api(void);
