#pragma once

/* files - opens the standard descriptors, and files that a user names. */

#include <stdbool.h>
#include <stdio.h>
#include <sys/types.h>
#include <unistd.h>

#include "base/buf.h"

/* Opens descriptors 0 to 2 if they are closed; otherwise a socket or a file could get one of these
 * numbers and receive printed text. */
void files_open_standard(void);

/* Writes out what was printed to stdout. Returns false, with a message on stderr, if a part could
 * not be written. A program that prints calls this at its end. */
bool files_flush(void);

/* Returns true if @path is a folder, or a link to one. */
bool files_is_folder(const char *path);

/* Opens the file @path for reading. Waits a short time for the writer of a FIFO, because a daemon
 * that reads its configuration again must not block. Returns NULL with errno; EAGAIN: no writer
 * opened the FIFO. */
FILE *files_open(const char *path);

/* Writes to @out the folder in which systemd lets the daemon keep files: the first one of the list
 * $STATE_DIRECTORY. Returns false if there is none or its path is longer than @size. */
bool files_state_folder(char *out, size_t size);

/* Places of the folder for sockets of daemons that a user starts by hand, the best first. */
enum { FILES_SOCKETS_RUNTIME, FILES_SOCKETS_STATE, FILES_SOCKETS_N };

/* Writes to @out the folder for sockets: $XDG_RUNTIME_DIR/weft (FILES_SOCKETS_RUNTIME);
 * $XDG_STATE_HOME/weft, or ~/.local/state/weft without it (FILES_SOCKETS_STATE). Returns false if
 * the variable is not set to an absolute path or the path does not fit into @size. */
bool files_socket_folder(int place, char *out, size_t size);

/* Sets SSL_CERT_FILE, the name of the file of trusted certificates, where the system keeps it
 * elsewhere than Debian: programs for all systems have Debian's libcurl. Keeps a value that is set.
 * Call it before there are threads. */
void files_find_certificates(void);

/* Makes the folders of @path, which ends with a file's name. Returns 0 or -errno. */
int files_make_folders(const char *path, mode_t mode);

/* For CLEANUP(files_closep): closes a descriptor, unless it is negative. */
static inline void files_closep(int *fd) {
    if (*fd >= 0)
        close(*fd);
}

/* Creates the file @name of the folder @dir (AT_FDCWD: @name is a path) for writing, and removes
 * what an interrupted program has left there: neither a FIFO, which open() would wait for, nor a
 * file that another process has open. Returns a descriptor or -errno. */
int files_create(int dir, const char *name, mode_t mode);

/* Appends the whole file @path to @out, and writes its permissions to *@mode unless that is NULL.
 * Waits as files_open(), also for a writer that pauses. Returns 0 or -errno; -EFBIG: the file has
 * more bytes than @out may have, as an endless device has. */
int files_read(const char *path, struct buf *out, mode_t *mode);
