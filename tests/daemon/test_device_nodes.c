#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/front/device_nodes.h"

/* A nvidia-modprobe that makes files: the devices are listed only after the control node exists. It
 * fails unless its output is dropped and its environment empty. */
static const char program[] = "#!/bin/sh\n"
                              R"(out=$(readlink /proc/$$/fd/1) err=$(readlink /proc/$$/fd/2))"
                              "\n"
                              R"(test "$out$err$HOME" = /dev/null/dev/null || exit 1)"
                              "\n"
                              R"(cd "${0%/*}" && echo "$*" >> said || exit 1)"
                              "\n"
                              R"(case "$*" in)"
                              "\n"
                              "*-u) : > dev/nvidia-uvm ;;\n"
                              "'-c 255') : > dev/nvidiactl; mkdir gpus/0000:17:00.0 "
                              "gpus/0000:65:00.0 ;;\n"
                              "*) : > dev/nvidia$2 ;;\n"
                              "esac\n";

static char dir[64], dev[80], gpus[80], path[80];

static struct device_nodes machine(void) {
    strcpy(dir, "/tmp/weft-nodes-XXXXXX");
    cr_assert(mkdtemp(dir));
    snprintf(dev, sizeof(dev), "%s/dev", dir);
    snprintf(gpus, sizeof(gpus), "%s/gpus", dir);
    snprintf(path, sizeof(path), "%s/modprobe", dir);
    cr_assert(mkdir(dev, 0700) == 0 && mkdir(gpus, 0700) == 0);
    FILE *f = fopen(path, "w");
    cr_assert(f && fputs(program, f) >= 0 && fclose(f) == 0 && chmod(path, 0700) == 0);
    return (struct device_nodes){dev, gpus, path};
}

/* Returns the arguments of all calls of the program. */
static const char *said(void) {
    static char text[200];
    char name[80];

    snprintf(name, sizeof(name), "%s/said", dir);
    FILE *f = fopen(name, "r");
    size_t n = f ? fread(text, 1, sizeof(text) - 1, f) : 0;
    text[n] = 0;
    if (f)
        fclose(f);
    return text;
}

static void clear(void) {
    char command[100];

    snprintf(command, sizeof(command), "rm -r %s", dir);
    cr_assert(system(command) == 0);
}

/* Returns the lowest descriptor that is free. */
static int free_fd(void) {
    int fd = dup(STDIN_FILENO);

    close(fd);
    return fd;
}

/* Makes the nodes. What the program writes would go to a file. */
static void make(const struct device_nodes *m) {
    int saved[] = {dup(STDOUT_FILENO), dup(STDERR_FILENO)}, lowest = free_fd();
    int out = open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);

    cr_assert(out >= 0 && dup2(out, STDOUT_FILENO) >= 0 && dup2(out, STDERR_FILENO) >= 0);
    close(out);
    device_nodes_make(m);
    cr_expect_eq(free_fd(), lowest, "a descriptor is left open");
    for (int i = 0; i < 2; i++) {
        dup2(saved[i], i ? STDERR_FILENO : STDOUT_FILENO);
        close(saved[i]);
    }
}

Test(device_nodes, after_a_boot_without_a_display) {
    struct device_nodes m = machine();

    setenv("HOME", "/", 1);
    make(&m);
    cr_expect_str_eq(said(), "-c 255\n-c 0\n-c 1\n-c 0 -u\n");
    make(&m);
    cr_expect_str_eq(said(), "-c 255\n-c 0\n-c 1\n-c 0 -u\n", "what is there is not made");
    clear();
}

Test(device_nodes, only_what_is_missing_and_nothing_without_devices) {
    struct device_nodes m = machine();
    char node[96];

    snprintf(node, sizeof(node), "%s/nvidiactl", dev);
    fclose(fopen(node, "w"));
    make(&m);
    cr_expect_str_eq(said(), "", "no device: %s", said());
    snprintf(node, sizeof(node), "%s/none", dev);
    make(&(struct device_nodes){dev, node, path});
    cr_expect_str_eq(said(), "", "no driver: %s", said());
    snprintf(node, sizeof(node), "%s/.hidden", gpus);
    mkdir(node, 0700);
    snprintf(node, sizeof(node), "%s/0000:17:00.0", gpus);
    mkdir(node, 0700);
    snprintf(node, sizeof(node), "%s/nvidia0", dev);
    fclose(fopen(node, "w"));
    make(&m);
    cr_expect_str_eq(said(), "-c 0 -u\n");
    snprintf(node, sizeof(node), "%s/nvidia-uvm", dev);
    unlink(node);
    chmod(path, 0600);
    make(&m);
    cr_expect_str_eq(said(), "-c 0 -u\n", "a file that is no program is not run");
    cr_expect_lt(access(node, F_OK), 0);
    unlink(path);
    make(&m);
    clear();
}
