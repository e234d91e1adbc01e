#pragma once

/* Takes from the calling process, and all threads it starts later, what a worker never needs:
 * network sockets, other programs, other processes' memory. Refused calls fail with EPERM. 0 or
 * -errno: this kernel has no filters. */
int sandbox_worker(void);
