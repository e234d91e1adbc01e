#pragma once

/*
 * device_watch - memory, energy, power, clock and temperature of a CUDA device, as the driver
 * reports them through NVML, which is opened at run time. A call takes milliseconds, or does not
 * return if the device is lost; therefore a thread makes the calls, once a second, and nothing else
 * waits for it.
 */

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

/* Statistics of a device; 0: not available. */
struct device_state {
    /* memory used by all programs */
    uint64_t memory_bytes, memory_used_bytes;
    /* energy_mj: since the driver started */
    uint64_t energy_mj;
    /* clock_mhz: clock of the multiprocessors */
    uint32_t power_mw, clock_mhz, celsius;
    /* the clock is lowered for power or heat */
    bool throttled;
};

struct device_watch;

/* Starts to watch the device at bus address @address (domain:bus:device.function). Returns 0;
 * -ENODEV: there is no NVML, or it does not know the device; or another -errno. @err has the
 * reason. */
int device_watch_new(struct device_watch **out, const char *address, struct err *err);
/* Returns the last state that was read; it changes once a second. If @w is NULL, all members are
 * 0. */
struct device_state device_watch_read(struct device_watch *w);
/* Ends the watch; accepts NULL. A thread that does not return from a call within a second keeps
 * running. */
void device_watch_free(struct device_watch *w);
