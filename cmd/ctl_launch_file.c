#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <yyjson.h>

#include "base/json_read.h"
#include "base/result.h"
#include "base/try.h"
#include "cmd/cli.h"
#include "cmd/ctl_launch.h"

#define FILE_MAX (8u << 20)

/* Writes @path with @end appended to @out. Returns false if it is too long. */
static bool launch_file_beside(char out[PATH_MAX], const char *path, const char *end) {
    return (size_t)snprintf(out, PATH_MAX, "%s%s", path, end) < PATH_MAX;
}

/* Notes in the file @by what @path gets, and writes it. */
static int launch_file_note(const char *by, const char *path, const char *text, size_t len,
                            mode_t mode) {
    TRY(cli_write_file(by, 0600, text, len, true));
    return cli_write_file(path, mode, text, len, true);
}

int launch_file_write(const char *path, const char *text, size_t len) {
    char before[PATH_MAX], by[PATH_MAX];
    CLEANUP(freep) char *old = NULL;
    size_t old_len = 0;
    struct stat st = {.st_mode = 0600};

    if (!launch_file_beside(before, path, ".before-weft") ||
        !launch_file_beside(by, path, ".by-weft"))
        return -ENAMETOOLONG;
    if (access(by, F_OK) == 0)
        return -EEXIST;
    TRY(files_make_folders(path, 0755));
    if (stat(path, &st) == 0) {
        TRY(cli_read_file(path, FILE_MAX, &old, &old_len));
        TRY(cli_write_file(before, st.st_mode & 0777, old, old_len, true));
    }
    int r = launch_file_note(by, path, text, len, st.st_mode & 0777);
    if (r < 0) { /* nothing was changed that an undo could restore */
        unlink(by);
        unlink(before);
    }
    return r;
}

bool launch_file_is_changed(const char *path) {
    char by[PATH_MAX];

    return launch_file_beside(by, path, ".by-weft") && access(by, F_OK) == 0;
}

/* Gives @path the content of the file @before, which is removed. If there is none, @path was new
 * and is removed. A link stays one. Returns 0 or -errno. */
static int launch_file_restore(const char *path, const char *before) {
    CLEANUP(freep) char *old = NULL;
    size_t n_old = 0;
    int r = cli_read_file(before, FILE_MAX, &old, &n_old);

    if (r == -ENOENT)
        return errno_if_negative(unlink(path));
    TRY(r);
    TRY(cli_write_file(path, 0600, old, n_old, true));
    return errno_if_negative(unlink(before));
}

int launch_file_undo(const char *path) {
    char before[PATH_MAX], by[PATH_MAX];
    CLEANUP(freep) char *now = NULL, *ours = NULL;
    size_t n_now = 0, n_ours = 0;

    if (!launch_file_beside(before, path, ".before-weft") ||
        !launch_file_beside(by, path, ".by-weft"))
        return -ENAMETOOLONG;
    TRY(cli_read_file(by, FILE_MAX, &ours, &n_ours));
    TRY(cli_read_file(path, FILE_MAX, &now, &n_now));
    if (n_now != n_ours || memcmp(now, ours, n_now) != 0)
        return -EBUSY;
    TRY(launch_file_restore(path, before));
    return errno_if_negative(unlink(by));
}

/* Merges @from into @to, both objects of @d. Returns false if memory is short. */
static bool launch_file_merge_objects(yyjson_mut_doc *d, yyjson_mut_val *to, yyjson_val *from) {
    JSON_MEMBERS(key, value, from) {
        yyjson_mut_val *old = yyjson_mut_obj_getn(to, json_text(key), json_len(key));

        if (yyjson_mut_is_obj(old) && yyjson_is_obj(value)) {
            if (!launch_file_merge_objects(d, old, value))
                return false;
            continue;
        }
        if (!yyjson_mut_obj_put(to, yyjson_val_mut_copy(d, key), yyjson_val_mut_copy(d, value)))
            return false;
    }
    return true;
}

int launch_file_merge(const char *path, const char *fragment, char **out, size_t *len) {
    CLEANUP(freep) char *text = NULL;
    size_t n = 0;
    int r = cli_read_file(path, FILE_MAX, &text, &n);

    if (r < 0 && r != -ENOENT)
        return r;
    CLEANUP(json_doc_freep) yyjson_doc *old = yyjson_read(n ? text : "{}", n ? n : 2, 0);
    CLEANUP(json_doc_freep) yyjson_doc *add = yyjson_read(fragment, strlen(fragment), 0);
    CLEANUP(json_mut_doc_freep) yyjson_mut_doc *d = NULL;

    assert(add);
    if (!yyjson_is_obj(yyjson_doc_get_root(old)))
        return -EBADMSG;
    d = yyjson_doc_mut_copy(old, NULL);
    if (!d || !launch_file_merge_objects(d, yyjson_mut_doc_get_root(d), yyjson_doc_get_root(add)))
        return -ENOMEM;
    *out = yyjson_mut_write(d, YYJSON_WRITE_PRETTY_TWO_SPACES, len);
    return enomem_unless(*out);
}
