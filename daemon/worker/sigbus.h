#pragma once

/* sigbus - a mapped file that is cut off while it is read ends the process with an exit code and a
 * line, not with a signal that tells nothing. */

/* Makes a read beyond the end of a mapped file end the process with @code, after @line is written
 * to stderr ("": no line). @line must stay valid. Other causes of SIGBUS keep their effect. */
void sigbus_exit_with(int code, const char *line);
