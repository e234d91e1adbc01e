#pragma once

/*
 * cpus - how many processors this process may use: those of its affinity mask, or fewer if a
 * control group (`docker run --cpus`, CPUQuota= of systemd) gives it less of their time.
 */

#include <stdint.h>

/* Returns the number of processors, at least 1. */
uint32_t cpus_usable(void);

/* Returns the number of processors whose whole time the control group @path and its ancestors below
 * @root give, at least 1; UINT32_MAX: no limit. Parts of a processor do not count: threads that
 * wait for each other would all stand still when the group's time is used up. */
uint32_t cpus_in_group(const char *root, const char *path);
