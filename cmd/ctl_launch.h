#pragma once

/*
 * ctl_launch - configures and starts clients of weftd: by environment and command line, which
 * changes no file, or by the client's own file, which can be restored. Private to weftctl.
 */

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"

/* A client. Its texts may contain {url} (without a slash at its end), {model} and {key}; {context}:
 * the model's context in tokens (texts with it are left out if it is not known); {limit}: the
 * client's @limit, or nothing if it is not known; {output}: the longest answer that @limit allows
 * the client to request. */
struct launch_client {
    const char *name, *program;
    /* NAME=TEXT; ends with NULL. Empty: the client reads only its file */
    const char *env[12];
    /* arguments before those of the user; ends with NULL */
    const char *args[12];
    /* path below the home folder of the file that --write changes; NULL: none */
    const char *file;
    /* JSON that is merged into the file, or NULL */
    const char *fragment;
    /* text appended to the file if it does not contain @mark yet */
    const char *appended;
    const char *mark;
    /* measured tokens of its first prompt; 0: not known */
    uint32_t n_first;
    /* part of the fragment; NULL: there is none */
    const char *limit;
    /* text printed after --write; NULL: none */
    const char *note;
};

extern const struct launch_client launch_clients[]; /* ends with a client without a name */

/*
 * Functions of ctl_launch_file.c, which change a file so that it can be restored. FILE.before-weft
 * has its earlier content and FILE.by-weft the new one; undoing restores the former if FILE still
 * equals the latter. All return 0 or -errno.
 */

/* Writes @text to @path. -EEXIST: the file was changed before and not restored. */
int launch_file_write(const char *path, const char *text, size_t len);
/* returns true if the file was changed and not restored */
bool launch_file_is_changed(const char *path);
/* Restores @path. -ENOENT: nothing to restore; -EBUSY: @path was changed since. */
int launch_file_undo(const char *path);
/* Merges the JSON object @fragment into the content of @path (objects into objects, other values
 * are replaced). *out is owned by the caller. -EBADMSG: the file is not plain JSON. */
int launch_file_merge(const char *path, const char *fragment, char **out, size_t *len);

struct chat_server;

/* Measures the prompt tokens per second that @server computes with @model (ctl_launch_time.c).
 * Takes the time of a few hundred tokens. Returns 0 if the measurement fails. */
double launch_prompt_rate(struct chat_server *server, const char *model);

/* Runs the command `weftctl launch` with the arguments from its name on. Returns an exit code of
 * cli.h. */
int ctl_launch(int argc, char **argv, bool json);
