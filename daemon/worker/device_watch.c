#include "daemon/worker/device_watch.h"

#include <assert.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/library.h"
#include "base/thread.h"
#include "base/try.h"
#include "base/util.h"

/* Declarations of NVML from its API reference, so that its header is not needed. A result of 0 is
 * success. CUDA 13 replaced two calls, which then return an error; older drivers lack the new
 * calls. */
struct nvml_memory {
    unsigned long long total, free, used;
};

struct nvml_temperature {
    /* value TEMPERATURE_1 */
    unsigned version;
    int sensor, celsius;
};

#define TEMPERATURE_1 ((unsigned)sizeof(struct nvml_temperature) | 1u << 24)

enum { CLOCK_SM = 1, SENSOR_GPU = 0 };

/* Reasons for a lower clock that count: the cap on power, hardware, heat (by software and by
 * hardware), the power supply's brake. Being idle, a user's setting and a clock kept equal to that
 * of another device do not count. */
enum { REASONS_THROTTLED = 0x04 | 0x08 | 0x20 | 0x40 | 0x80 };

struct nvml {
    void *library;
    int (*init)(void);
    int (*shutdown)(void);
    const char *(*error)(int result);
    int (*find)(const char *address, void **device);
    int (*memory)(void *device, struct nvml_memory *out);
    int (*energy)(void *device, unsigned long long *mj);
    int (*power)(void *device, unsigned *mw);
    int (*clock)(void *device, int which, unsigned *mhz);
    int (*temperature)(void *device, struct nvml_temperature *t);
    int (*old_temperature)(void *device, int sensor, unsigned *celsius);
    int (*reasons)(void *device, unsigned long long *bits);
    int (*old_reasons)(void *device, unsigned long long *bits);
};

/* State of a watch. A thread that hangs in a call of NVML keeps it after device_watch_free(). */
struct device_watch {
    struct nvml nvml;
    void *device;
    pthread_t thread;
    /* guards the following members */
    pthread_mutex_t lock;
    pthread_cond_t ends;
    bool ending;
    struct device_state state;
};

static int device_watch_open_library(struct nvml *n, struct err *err) {
    static const char *const names[] = {
        "libnvidia-ml.so.1", "/usr/local/nvidia/lib64/libnvidia-ml.so.1",
        "/usr/lib/wsl/lib/libnvidia-ml.so.1", "/run/opengl-driver/lib/libnvidia-ml.so.1"};
    const struct library_call calls[] = {
        {"nvmlInit_v2", &n->init, false},
        {"nvmlShutdown", &n->shutdown, false},
        {"nvmlErrorString", &n->error, false},
        {"nvmlDeviceGetHandleByPciBusId_v2", &n->find, false},
        {"nvmlDeviceGetMemoryInfo", &n->memory, false},
        {"nvmlDeviceGetTotalEnergyConsumption", &n->energy, false},
        {"nvmlDeviceGetPowerUsage", &n->power, false},
        {"nvmlDeviceGetClockInfo", &n->clock, false},
        {"nvmlDeviceGetTemperatureV", &n->temperature, true},
        {"nvmlDeviceGetTemperature", &n->old_temperature, true},
        {"nvmlDeviceGetCurrentClocksEventReasons", &n->reasons, true},
        {"nvmlDeviceGetCurrentClocksThrottleReasons", &n->old_reasons, true},
    };

    n->library = library_open(names, ARRAY_SIZE(names), calls, ARRAY_SIZE(calls), NULL,
                              "NVML is not available", err);
    if (!n->library)
        return -ENODEV;
    return 0;
}

static unsigned temperature_of(const struct nvml *n, void *device) {
    struct nvml_temperature t = {.version = TEMPERATURE_1, .sensor = SENSOR_GPU};
    unsigned celsius;

    if (n->temperature && n->temperature(device, &t) == 0)
        return (unsigned)MAX(t.celsius, 0);
    if (n->old_temperature && n->old_temperature(device, SENSOR_GPU, &celsius) == 0)
        return celsius;
    return 0;
}

static bool is_throttled(const struct nvml *n, void *device) {
    unsigned long long bits = 0;

    if ((!n->reasons || n->reasons(device, &bits)) &&
        (!n->old_reasons || n->old_reasons(device, &bits)))
        return false;
    return bits & REASONS_THROTTLED;
}

/* Asks NVML for the state of the device; values that it does not have stay 0. */
static struct device_state device_watch_ask(const struct device_watch *w) {
    const struct nvml *n = &w->nvml;
    void *device = w->device;
    struct device_state s = {0};
    struct nvml_memory memory = {0};
    unsigned long long energy = 0;

    if (n->memory(device, &memory) == 0) {
        s.memory_bytes = memory.total;
        s.memory_used_bytes = memory.used;
    }
    if (n->energy(device, &energy) == 0)
        s.energy_mj = energy;
    if (n->power(device, &s.power_mw))
        s.power_mw = 0;
    if (n->clock(device, CLOCK_SM, &s.clock_mhz))
        s.clock_mhz = 0;
    s.celsius = temperature_of(n, device);
    s.throttled = is_throttled(n, device);
    return s;
}

static void *device_watch_run(void *ctx) {
    struct device_watch *w = ctx;
    struct timespec next;

    clock_gettime(CLOCK_MONOTONIC, &next);
    pthread_mutex_lock(&w->lock);
    while (!w->ending) {
        pthread_mutex_unlock(&w->lock);
        struct device_state s = device_watch_ask(w);
        pthread_mutex_lock(&w->lock);
        w->state = s;
        next.tv_sec++;
        while (!w->ending && pthread_cond_timedwait(&w->ends, &w->lock, &next) == 0)
            ;
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

static void deinit(struct device_watch *w) {
    if (w->device)
        w->nvml.shutdown();
    if (w->nvml.library)
        dlclose(w->nvml.library);
    pthread_cond_destroy(&w->ends);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

static int device_watch_start(struct device_watch *w, const char *address, struct err *err) {
    TRY(device_watch_open_library(&w->nvml, err));
    assert(w->nvml.library && !w->device);
    int e = w->nvml.init();
    if (e == 0 && (e = w->nvml.find(address, &w->device)) != 0) {
        w->nvml.shutdown();
        w->device = NULL;
    }
    if (e) {
        err_set(err, 0, NULL, "NVML of %s: %s", address, w->nvml.error(e));
        return -ENODEV;
    }
    w->state = device_watch_ask(w);
    int r = thread_start(&w->thread, NULL, device_watch_run, w);
    return r < 0 ? (err_set(err, 0, NULL, "cannot start a thread: %s", strerror(-r)), r) : 0;
}

int device_watch_new(struct device_watch **out, const char *address, struct err *err) {
    struct device_watch *w = calloc(1, sizeof(*w));
    pthread_condattr_t monotonic;

    if (!w)
        return -ENOMEM;
    pthread_mutex_init(&w->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&w->ends, &monotonic);
    pthread_condattr_destroy(&monotonic);
    int r = device_watch_start(w, address, err);
    if (r < 0)
        deinit(w);
    else
        *out = w;
    return r;
}

struct device_state device_watch_read(struct device_watch *w) {
    struct device_state s = {0};

    if (!w)
        return s;
    pthread_mutex_lock(&w->lock);
    s = w->state;
    pthread_mutex_unlock(&w->lock);
    return s;
}

void device_watch_free(struct device_watch *w) {
    struct timespec limit;

    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    assert(!w->ending);
    w->ending = true;
    pthread_cond_signal(&w->ends);
    pthread_mutex_unlock(&w->lock);
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec++;
    if (pthread_timedjoin_np(w->thread, NULL, &limit) == 0)
        deinit(w);
    else
        pthread_detach(w->thread);
}
