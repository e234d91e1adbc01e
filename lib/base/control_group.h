#pragma once

/*
 * control_group - reads the control groups around this process, as a container or a unit of systemd
 * has them: one tree of groups in version 2, one for each mounted set of controllers in version 1.
 * Each group may have limits; the strictest one counts.
 */

#include <stdbool.h>

#define CONTROL_GROUP_ROOT "/sys/fs/cgroup"
#define CONTROL_GROUP_SELF "/proc/self/cgroup" /* the groups of this process */
#define CONTROL_GROUP_NAMES 128u
#define CONTROL_GROUP_PATH 512u

struct control_group {
    /* controllers of the tree, "memory" or "memory,hugetlb"; "" in version 2 */
    char names[CONTROL_GROUP_NAMES];
    /* "/system.slice/weftd.service", or "/" in a container */
    char path[CONTROL_GROUP_PATH];
};

/* Finds the group of @controller in the file @self, which is like CONTROL_GROUP_SELF. @controller:
 * "" for the tree of version 2, or the name of one of version 1. Returns false if there is none. */
bool control_group_find(const char *self, const char *controller, struct control_group *out);

/* Calls @fn with the folder below @root of the group @path, and then of each of its ancestors. */
void control_group_each(const char *root, const char *path,
                        void (*fn)(const char *folder, void *ctx), void *ctx);

/* Reads the file @name of a group's folder with the format @format of scanf(). Returns the number
 * of values that were read, 0 if the file does not exist. */
__attribute__((format(scanf, 3, 4))) int control_group_read(const char *folder, const char *name,
                                                            const char *format, ...);
