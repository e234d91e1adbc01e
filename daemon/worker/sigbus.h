#pragma once

/* sigbus - a mapped file that is cut off while it is read ends the process with an exit code and a
 * line, not with a signal that tells nothing. */

/* From now on such a read ends the process with @code, after @line was written to stderr ("": it
 * was not). @line outlives the process's use. Other causes of SIGBUS do what they did. */
void sigbus_exit_with(int code, const char *line);
