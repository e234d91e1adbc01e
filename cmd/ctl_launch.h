#pragma once

/*
 * ctl_launch - clients of weftd and their configuration: by environment and command line, which
 * changes no file, or by the client's own file, which can be restored. Private to weftctl.
 */

#include <stdbool.h>
#include <stddef.h>
#include "base/buf.h"

/* Texts have {url} (no slash at its end), {model} and {key} in them, {context}: how many tokens the
 * model takes (where that is not known, what names it is left out), and {limit}: the client's
 * @limit, or nothing where it is not known. {output}: how long an answer @limit lets it ask for. */
struct launch_client {
    const char *name, *program;
    const char *env[12];  /* NAME=TEXT; ends with NULL. None: it reads only its file */
    const char *args[12]; /* before the user's; ends with NULL */
    const char *file;     /* below the home folder, that --write changes; NULL: none */
    const char *fragment; /* JSON that is merged into it, or NULL and: */
    const char *appended; /* put behind it, where it has no @mark yet */
    const char *mark;
    uint32_t n_first;  /* tokens of its first prompt, as measured; 0: not known */
    const char *limit; /* a part of the fragment; NULL: it has none */
    const char *note;  /* printed after --write; NULL: nothing */
};

extern const struct launch_client launch_clients[]; /* ends with one without name */

/*
 * ctl_launch_file.c: changes a file so that it can be restored. FILE.before-weft has its earlier
 * content and FILE.by-weft the new one; undoing restores the former if FILE still equals the
 * latter. All return 0 or -errno.
 */

/* Writes @text to @path. -EEXIST: the file was changed before and not restored. */
int launch_file_write(const char *path, const char *text, size_t len);
bool launch_file_is_changed(const char *path); /* returns true if it was changed and not restored */
/* Restores @path. -ENOENT: nothing to restore; -EBUSY: @path was changed since. */
int launch_file_undo(const char *path);
/* Merges the JSON object @fragment into the content of @path (objects into objects, other values
 * are replaced). *out is owned by the caller. -EBADMSG: the file is not plain JSON. */
int launch_file_merge(const char *path, const char *fragment, char **out, size_t *len);

struct chat_server;

/* Measures how many prompt tokens a second @server computes with @model: ctl_launch_time.c. Takes
 * the time of a few hundred tokens. Returns 0 if that is not known. */
double launch_prompt_rate(struct chat_server *server, const char *model);

/* The command `weftctl launch`: its arguments from its name on; returns an exit code of cli.h. */
int ctl_launch(int argc, char **argv, bool json);
