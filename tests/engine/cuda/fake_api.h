#pragma once

/*
 * fake_api - a CUDA runtime without a device. Kernels run on the CPU (simt.h), and only when a call
 * waits for them, which is as late as an asynchronous device might run them. It is linked into a
 * weft-cuda.so beside the test program, which controls it through this struct (dlsym "fake_cuda").
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FAKE_DEVICES 8

struct fake_cuda {
    /* Inputs, set by tests. */
    /* number of the call that fails; 0: none */
    uint32_t fail_at;
    /* all later calls fail, too */
    bool sticky;
    /* error code of the failure; 0: a made-up one */
    int error;
    /* number of samplings after which events are never reached; 0: no limit */
    uint32_t hang_after;
    /* number of records after which events are never reached; 0: no limit */
    uint32_t hang_records;
    /* device whose events are never reached */
    int hang_device;
    /* 1 + the device that does all its work before the others; 0: none; -1: a different one each
     * time that the host waits. */
    int ahead;
    /* `ahead` applies only when n_drained / 2 is odd */
    bool now_and_then;
    /* number of the wait of a stream for an event that is left out; 0: none */
    uint32_t forget_wait;
    /* the last device has another compute capability */
    bool other_kind;
    /* no device has access to another's memory */
    bool no_peers;
    int n_devices, major, minor, n_multiprocessors;
    /* CUDA version of the driver, as in cuda_api.versions(); the runtime's is 13.0 */
    int driver;
    /* memory of each device */
    size_t bytes;
    /* part of it that another process uses during the next `others_stay` queries */
    size_t others;
    uint32_t others_stay;
    /* memory is the host's, of which the file cache uses `cached` bytes */
    bool integrated;
    size_t cached;
    /* Order of the threads of a block: simt_order(). Host calls run as late as possible if it is
     * even, and immediately if it is odd. */
    uint64_t order;
    /* 1 + the device for which the module has no kernels; 0: none */
    int no_code;
    /* captures fail when they end: there is no memory for a graph */
    bool no_graphs;
    /* result of cuda_api.check_kernel(); 0: the device's compute capability */
    int made_for;
    /* sums of wgmma are rounded differently from those of mma */
    bool other_wgmma;
    /* kernels do nothing, and fills set only the first bytes */
    bool idle;
    /* name of a kernel that runs nevertheless */
    const char *not_idle;
    /* name of a kernel that does nothing */
    const char *broken;
    /* name of a kernel whose launch fails, and with it all later calls */
    const char *faulty;
    /* Returns the time of a launch in us of the fake clock; NULL: 0. */
    float (*us_of)(const char *kernel, const void *args);
    /* Called before a kernel runs, if set; @number counts the launches of the process. */
    void (*on_launch)(const char *kernel, uint64_t number, void *args);

    /* Outputs, read by tests. */
    /* n_waits: of streams for events */
    uint32_t n_calls, n_waits, n_records;
    /* number of times that the host has waited for work */
    uint32_t n_drained;
    /* number of allocations, streams and events */
    int n_live;
    size_t n_bytes, peak_bytes;
    /* the fake clock */
    float now_us;
    uint64_t n_launches, n_early, n_late, n_graphs, n_graph_launches, n_host_calls;
    /* a host call may be running: it has started and is not joined */
    bool beside;
    /* call fail_at was part of a capture */
    bool failed_capture;
};

extern struct fake_cuda fake_cuda;
