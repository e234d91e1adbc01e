#pragma once

/*
 * fake_api - a CUDA runtime without a device: kernels run on the CPU (simt.h), and only when a call
 * waits for them, as late as an asynchronous device might. It is part of a weft-cuda.so beside the
 * test program, which steers it through this struct (dlsym "fake_cuda").
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FAKE_DEVICES 8

struct fake_cuda {
    /* Set by tests. */
    uint32_t fail_at; /* the n-th call fails; 0: none */
    bool sticky;      /* and all after it */
    int error;        /* with which it fails; 0: with one that is made up */
    uint32_t
        hang_after; /* events are never reached once so many samplings were enqueued; 0: they are */
    uint32_t hang_records; /* events are never reached once so many were recorded; 0: they are */
    int hang_device;       /* whose events these are */
    /* 1 + the device that does all before the others do anything; 0: none, -1: another one
     * from one time to the next that the host waits. */
    int ahead;
    bool now_and_then;    /* only where n_drained / 2 is odd */
    uint32_t forget_wait; /* the n-th wait of a stream for an event is left out; 0: none */
    bool other_kind;      /* the last device is of another family */
    bool no_peers;        /* no device reaches another's memory */
    int n_devices, major, minor, n_multiprocessors;
    int driver;    /* the CUDA that it knows, as cuda_api.versions(); the runtime is of 13.0 */
    size_t bytes;  /* memory of each device */
    size_t others; /* of it that another process has for so many questions more */
    uint32_t others_stay;
    bool integrated; /* memory is the host's, of which the file cache holds `cached` bytes */
    size_t cached;
    /* Of the threads of a block: simt_order(). Host calls are done as late as may be; where it is
     * odd, at once. */
    uint64_t order;
    int no_code;        /* 1 + the device for which there are no kernels; 0: none */
    bool no_graphs;     /* captures fail at their end */
    int made_for;       /* cuda_device.made_for; 0: the device's */
    bool other_wgmma;   /* its sums are rounded otherwise than mma's */
    bool idle;          /* no kernel does anything, and fills end early */
    const char *broken; /* the kernel of this name does nothing */
    const char *faulty; /* its launch fails, and every call after it */
    /* Time that a launch takes by the clock, in us; NULL: 0. */
    float (*us_of)(const char *kernel, const void *args);
    /* Called before kernel @number of the process runs, if set. */
    void (*on_launch)(const char *kernel, uint64_t number, void *args);

    /* For tests to look at. */
    uint32_t n_calls, n_waits, n_records; /* n_waits: of streams for events */
    uint32_t n_drained;                   /* how often the host has waited for something */
    int n_live;                           /* allocations, streams and events */
    size_t n_bytes, peak_bytes;
    float now_us; /* the clock */
    uint64_t n_launches, n_early, n_graphs, n_graph_launches, n_host_calls;
    bool beside;         /* a host call may run: the device is between it and where it is joined */
    bool failed_capture; /* the call that was to fail belongs to a capture */
};

extern struct fake_cuda fake_cuda;
