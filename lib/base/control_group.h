#pragma once

/*
 * control_group - reads the control groups around this process, as a container or a unit of systemd
 * has them: one tree of groups in version 2, one for each controller in version 1. Each group may
 * have limits; the strictest one counts.
 */

#include <stdbool.h>

#define CONTROL_GROUP_ROOT "/sys/fs/cgroup"
#define CONTROL_GROUP_PATH 512u

/* Writes the path of this process's group to @path: "/system.slice/weftd.service", or "/" in a
 * container. @controller: "" for the tree of version 2, or the name of one of version 1. Returns
 * false if there is none. */
bool control_group_path(const char *controller, char path[CONTROL_GROUP_PATH]);

/* Calls @fn with the folder below @root of the group @path, and then of each of its ancestors. */
void control_group_each(const char *root, const char *path,
                        void (*fn)(const char *folder, void *ctx), void *ctx);

/* Reads the file @name of a group's folder with the format @format of scanf(). Returns the number
 * of values that were read, 0 if the file does not exist. */
__attribute__((format(scanf, 3, 4))) int control_group_read(const char *folder, const char *name,
                                                            const char *format, ...);
