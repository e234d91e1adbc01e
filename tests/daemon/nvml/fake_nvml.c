/*
 * A libnvidia-ml.so.1 of one device, at 0000:17:00.0 and at 0000:18:00.0, which uses 300 J between
 * any two questions. Tests change its figures through fake_nvml.
 */
#include "fake_nvml.h"

#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

EXPORT struct fake_nvml fake_nvml = {.total = 1ull << 37,
                                     .used = 1ull << 36,
                                     .mj = 5000000,
                                     .mw = 312000,
                                     .mhz = 1980,
                                     .celsius = 54};

enum { NOT_SUPPORTED = 3, NOT_FOUND = 6, VERSION_MISMATCH = 25, DEPRECATED = 26 };

struct memory {
    unsigned long long total, free, used;
};

struct temperature {
    unsigned version;
    int sensor, celsius;
};

EXPORT int nvmlInit_v2(void) {
    fake_nvml.n_open++;
    return fake_nvml.refuses;
}

EXPORT int nvmlShutdown(void) {
    fake_nvml.n_open--;
    return 0;
}

EXPORT const char *nvmlErrorString(int result) {
    return result == NOT_FOUND ? "Not Found" : "Driver Not Loaded";
}

EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *address, void **device) {
    *device = &fake_nvml;
    return strcmp(address, "0000:17:00.0") && strcmp(address, "0000:18:00.0") ? NOT_FOUND : 0;
}

EXPORT int nvmlDeviceGetMemoryInfo(void *device, struct memory *out) {
    while (fake_nvml.hangs)
        usleep(1000);
    *out = (struct memory){fake_nvml.total, fake_nvml.total - fake_nvml.used, fake_nvml.used};
    fake_nvml.n_asked++;
    return 0;
}

EXPORT int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *mj) {
    *mj = fake_nvml.mj;
    fake_nvml.mj += 300000;
    return fake_nvml.old ? NOT_SUPPORTED : 0;
}

EXPORT int nvmlDeviceGetPowerUsage(void *device, unsigned *mw) {
    *mw = fake_nvml.mw;
    return fake_nvml.old ? NOT_SUPPORTED : 0;
}

EXPORT int nvmlDeviceGetClockInfo(void *device, int which, unsigned *mhz) {
    *mhz = which == 1 ? fake_nvml.mhz : 0;
    return 0;
}

EXPORT int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius) {
    *celsius = sensor == 0 ? fake_nvml.celsius : 0;
    return fake_nvml.newer ? DEPRECATED : 0;
}

EXPORT int nvmlDeviceGetTemperatureV(void *device, struct temperature *t) {
    if (!fake_nvml.newer || t->version != 0x100000c)
        return VERSION_MISMATCH;
    t->celsius = t->sensor == 0 ? (int)fake_nvml.celsius : 0;
    return 0;
}

EXPORT int nvmlDeviceGetCurrentClocksEventReasons(void *device, unsigned long long *bits) {
    *bits = fake_nvml.reasons;
    return fake_nvml.newer ? 0 : NOT_SUPPORTED;
}

EXPORT int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *bits) {
    *bits = fake_nvml.reasons;
    return fake_nvml.newer ? DEPRECATED : 0;
}
