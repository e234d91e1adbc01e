#pragma once

/* files - descriptors that every program expects, and files that are named by a user. */

#include <stdbool.h>
#include <stdio.h>
#include <sys/types.h>
#include "base/buf.h"

/* Opens descriptors 0 to 2 if they are closed; otherwise a socket or a file could get one of these
 * numbers and receive printed text. */
void files_open_standard(void);

/* Writes out what was printed to stdout. Returns false, after saying so, if not all of it arrived;
 * a program that prints ends with this. */
bool files_flush(void);

/* Opens the file @path to be read. Waits a short time for the writer of a FIFO, because a daemon
 * that reads its configuration again must not block. Returns NULL with errno; EAGAIN: no writer
 * opened the FIFO. */
FILE *files_open(const char *path);

/* Writes to @out the folder in which systemd lets the daemon keep files: the first of the list
 * $STATE_DIRECTORY. Returns false without one, or if it is longer than @size. */
bool files_state_folder(char *out, size_t size);

/* Adds the whole file @path to @out, and says its permissions in *@mode unless that is NULL. Waits
 * as files_open(), also for a writer that pauses. 0 or -errno; -EFBIG: it has more bytes than @out
 * may have, as a device without an end. */
int files_read(const char *path, struct buf *out, mode_t *mode);
