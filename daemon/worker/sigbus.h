#pragma once

/* sigbus - ends the process with an exit code and a message, instead of the signal SIGBUS, if a
 * mapped file becomes shorter while it is read. */

/* Makes a read beyond the end of a mapped file end the process with @code, after @line is written
 * to stderr ("": no line). @line must stay valid. SIGBUS with another cause keeps its default
 * effect. */
void sigbus_exit_with(int code, const char *line);
