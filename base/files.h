#pragma once

/* files - descriptors that every program expects, and files that are named by a user. */

#include <stdio.h>

/* Opens descriptors 0 to 2 if they are closed; otherwise a socket or a file could get one of these
 * numbers and receive printed text. */
void files_open_standard(void);

/* Opens the file @path to be read. Waits for the writer of a FIFO, but not for long: a daemon that
 * reads its configuration again must not stand still. NULL with errno; EAGAIN: no writer came. */
FILE *files_open(const char *path);
