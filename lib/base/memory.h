#pragma once

/*
 * memory - how much memory this process may still take: the available memory of the machine, or
 * less if a control group (a container, MemoryMax= of systemd) or a limit of the address space
 * allows less.
 */

#include <stdint.h>

/* Returns the bytes of memory that are available, or 4 GiB if the machine does not report it. */
uint64_t memory_available(void);

/* Returns @available, the bytes that a model may take on this machine; 0: not known, because a
 * device has memory of its own. */
uint64_t memory_for_model(uint64_t available);

/* Returns the bytes that a buffer may have which wants @most bytes and needs @least: where memory
 * is short, as in a small container, an eighth of the bytes @available. */
uint64_t memory_part(uint64_t available, uint64_t most, uint64_t least);

/* Returns the bytes of the machine's memory, whatever is in them; UINT64_MAX if it is not known. */
uint64_t memory_machine(void);

/* Returns the smallest room that the control group @path ("/system.slice/weftd.service") and its
 * ancestors below @root ("/sys/fs/cgroup") leave; UINT64_MAX: no limit. */
uint64_t memory_in_group(const char *root, const char *path);
/* Returns the smallest room that the groups in the file @self leave, which is like
 * CONTROL_GROUP_SELF, of trees that are mounted below @root; UINT64_MAX: no limit. */
uint64_t memory_in_groups(const char *self, const char *root);
