#pragma once

/* version - prints what was built: for `--version`, and for reports of problems. */

/* Commit of the source, with the words "with changes" where files differ from it; "unknown" if no
 * one knows. In a file of its own, because each commit changes it. */
extern const char version_commit[];

/* Prints the version of @program, its commit, its compiler and its backends to stdout. @library:
 * the backend of a library, in words; "": none is found, or @program uses none. */
void version_print(const char *program, const char *library);
