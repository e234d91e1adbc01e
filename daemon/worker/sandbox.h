#pragma once

/* Forbids the calling process, and all threads it starts later, system calls that a worker never
 * needs: network sockets, other programs, other processes' memory. Refused calls fail with EPERM.
 * Returns 0, or -errno if this kernel has no filters. */
int sandbox_worker(void);
