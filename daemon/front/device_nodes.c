#include "daemon/front/device_nodes.h"

#include <dirent.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/util.h"

#define CONTROL 255u /* minor number of nvidiactl */

const struct device_nodes device_nodes_system = {"/dev", "/proc/driver/nvidia/gpus",
                                                 "/usr/bin/nvidia-modprobe"};

static bool is_missing(const struct device_nodes *at, const char *name) {
    char path[320];

    snprintf(path, sizeof(path), "%s/%s", at->dev, name);
    return access(path, F_OK) < 0;
}

/* Runs the program with "-c @minor", and with @last unless that is NULL. */
static void device_nodes_run(const struct device_nodes *at, uint32_t minor, const char *last) {
    char number[16], *none[] = {NULL};
    char *args[] = {(char *)at->program, (char *)"-c", number, (char *)last, NULL};
    posix_spawn_file_actions_t quiet;
    pid_t pid;

    snprintf(number, sizeof(number), "%u", minor);
    if (posix_spawn_file_actions_init(&quiet) != 0)
        return;
    posix_spawn_file_actions_addopen(&quiet, 1, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_adddup2(&quiet, 1, 2);
    if (posix_spawn(&pid, at->program, &quiet, NULL, args, none) == 0)
        waitpid(pid, NULL, 0);
    posix_spawn_file_actions_destroy(&quiet);
}

static uint32_t count_gpus(const struct device_nodes *at) {
    DIR *gpus = opendir(at->gpus);
    struct dirent *e;
    uint32_t n = 0;

    while (gpus && (e = readdir(gpus)))
        n += e->d_name[0] != '.';
    if (gpus)
        closedir(gpus);
    return n;
}

void device_nodes_make(const struct device_nodes *at) {
    char name[32];

    if (access(at->program, X_OK) < 0)
        return;
    if (is_missing(at, "nvidiactl")) /* the program also loads the module that lists the devices */
        device_nodes_run(at, CONTROL, NULL);
    uint32_t n = count_gpus(at);
    for (uint32_t i = 0; i < n; i++) {
        snprintf(name, sizeof(name), "nvidia%u", i);
        if (is_missing(at, name))
            device_nodes_run(at, i, NULL);
    }
    if (n > 0 && is_missing(at, "nvidia-uvm"))
        device_nodes_run(at, 0, "-u");
}
