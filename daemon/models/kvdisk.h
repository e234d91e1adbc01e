#pragma once

/* kvdisk - the folder of the disk tier: the file that the worker gets, and the secret from which
 * isolation keys are derived. */

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

/* Opens the files in folder @path, which is created if it does not exist. With @lock, *@fd is
 * locked, so that no other daemon uses it. The secret is drawn once and stays in the folder, so
 * that a tenant finds its own prefixes again and no other tenant's. Returns 0, or -errno with
 * @err. */
int kvdisk_open(const char *path, bool lock, int *fd, uint64_t secret[2], struct err *err);
/* Opens the file of a further model in the folder of @path: prefixes-NAME.kv, with %XX for
 * characters that a file name cannot hold. *@fd is not locked. Returns 0, or -errno with @err. */
int kvdisk_open_model(const char *path, const char *name, int *fd, struct err *err);
/* Locks a file for this process and the workers that inherit it, without waiting. Returns false if
 * another daemon, or a worker that has not ended yet, has the lock. */
bool kvdisk_lock(int fd);
/* Releases the lock. Neither this process nor its worker may use the file any more. */
void kvdisk_unlock(int fd);
