#include "cmd/bench_record.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <yyjson.h>

/* Reads a whole number in millionths; 0 if there is no such file. Returns false if the file may not
 * be read. */
static bool read_micro(const char *path, double *out) {
    FILE *f = fopen(path, "r");
    unsigned long long v = 0;

    *out = 0;
    if (!f)
        return errno != EACCES && errno != EPERM;
    if (fscanf(f, "%llu", &v) == 1)
        *out = (double)v * 1e-6;
    fclose(f);
    return true;
}

void energy_read(struct energy *e, struct bench_http *h) {
    char path[96];

    *e = (struct energy){0};
    for (uint32_t i = 0; i < ENERGY_COUNTERS - 1; i++) {
        snprintf(path, sizeof(path), "/sys/class/powercap/intel-rapl:%u/energy_uj", i);
        e->rapl_denied |= !read_micro(path, &e->joules[i]);
        snprintf(path, sizeof(path), "/sys/class/powercap/intel-rapl:%u/max_energy_range_uj", i);
        read_micro(path, &e->wraps[i]);
    }
    e->joules[ENERGY_COUNTERS - 1] = bench_http_metric(h, "weft_device_energy_joules_total");
}

double energy_between(const struct energy *before, const struct energy *after) {
    double sum = 0;

    for (uint32_t i = 0; i < ENERGY_COUNTERS; i++) {
        double d = after->joules[i] - before->joules[i];

        if (before->joules[i] > 0 && after->joules[i] > 0)
            sum += d < 0 ? d + before->wraps[i] : d;
    }
    return sum;
}

/* Adds the output of @command as @key: its first line, or with @all an array of lines; null if it
 * failed. */
static void add_output(yyjson_mut_doc *d, yyjson_mut_val *root, const char *key,
                       const char *command, bool all) {
    yyjson_mut_val *list = all ? yyjson_mut_obj_add_arr(d, root, key) : NULL;
    FILE *f = popen(command, "r");
    char line[256];
    bool some = false;

    while (f && (all || !some) && fgets(line, sizeof(line), f)) {
        line[strcspn(line, "\n")] = 0;
        some = true;
        if (all)
            yyjson_mut_arr_add_strcpy(d, list, line);
        else
            yyjson_mut_obj_add_strcpy(d, root, key, line);
    }
    if (f)
        pclose(f);
    if (!all && !some)
        yyjson_mut_obj_add_null(d, root, key);
}

static void add_hardware(yyjson_mut_doc *d, yyjson_mut_val *root) {
    yyjson_mut_val *v = yyjson_mut_obj_add_obj(d, root, "hardware");

    add_output(d, v, "cpu", "sed -n 's/^model name[^:]*: //p' /proc/cpuinfo", false);
    yyjson_mut_obj_add_int(d, v, "cpus", sysconf(_SC_NPROCESSORS_ONLN));
    yyjson_mut_obj_add_int(d, v, "memory_bytes", sysconf(_SC_PAGE_SIZE) * sysconf(_SC_PHYS_PAGES));
    add_output(d, v, "gpus",
               "nvidia-smi --query-gpu=name,memory.total --format=csv,noheader 2>/dev/null", true);
}

static void add_command(yyjson_mut_doc *d, yyjson_mut_val *root, int argc, char *const *argv) {
    char text[4096] = "weft-bench";
    bool secret = false;

    for (int i = 0; i < argc; i++) {
        const char *a = secret ? "..." : argv[i];
        size_t n = strlen(text);

        secret = !secret && strcmp(argv[i], "--api-key") == 0;
        if (strncmp(a, "--api-key=", 10) == 0)
            a = "--api-key=...";
        snprintf(text + n, sizeof(text) - n, " %s", a);
    }
    yyjson_mut_obj_add_strcpy(d, root, "command", text);
}

void record_json(yyjson_mut_doc *d, yyjson_mut_val *root, int argc, char *const *argv,
                 const struct energy *e) {
    yyjson_mut_val *counters;
    time_t now = time(NULL);
    struct tm utc;
    char text[32];

    add_hardware(d, root);
    add_output(d, root, "commit", "git rev-parse HEAD 2>/dev/null", false);
    add_command(d, root, argc, argv);
    strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    yyjson_mut_obj_add_strcpy(d, root, "date", text);
    counters = yyjson_mut_obj_add_arr(d, root, "energy_counters");
    for (uint32_t i = 0; i < ENERGY_COUNTERS; i++) {
        snprintf(text, sizeof(text), i < ENERGY_COUNTERS - 1 ? "intel-rapl:%u" : "devices", i);
        if (e->joules[i] > 0)
            yyjson_mut_arr_add_strcpy(d, counters, text);
    }
    if (yyjson_mut_arr_size(counters) == 0)
        yyjson_mut_obj_add_str(d, root, "energy_missing",
                               e->rapl_denied ? "RAPL may not be read by this user, and the server "
                                                "tells no energy of devices"
                                              : "no RAPL, and the server tells no energy of "
                                                "devices");
}
