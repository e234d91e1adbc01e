/*
 * files - the weight files of a folder: model.safetensors, or the shards that an index lists.
 *
 * A folder may come from anywhere. Names in the index are those of files of the folder, and a
 * symbolic link is followed in two cases alone: to another file of the folder, and to
 * ../../blobs/NAME, which is how the hub's cache keeps its snapshots.
 */

#include "base/files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "base/printable.h"
#include "base/try.h"
#include "checkpoint/reader.h"

#define INDEX_FILE "model.safetensors.index.json"
#define INDEX_MAX (64u << 20)
#define WHOLE ": was the folder downloaded whole?"
#define OPEN_FLAGS (O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | O_NOFOLLOW)

/* Returns true if the link's @target is a file beside it or a blob of the hub's cache, which lies
 * at @blobs from there. */
static bool files_may_follow(const char *target, const char *blobs) {
    if (strncmp(target, blobs, strlen(blobs)) == 0)
        target += strlen(blobs);
    return *target && *target != '.' && !strchr(target, '/');
}

/* Opens file @name of @dir, in a folder whose @shown name messages have. */
static int files_openat(const struct reader *r, int dir, const char *name, const char *blobs,
                        const char *shown) {
    char target[512];
    int fd = openat(dir, name, OPEN_FLAGS);

    if (fd >= 0)
        return fd;
    if (errno != ELOOP)
        return -errno;
    ssize_t n = readlinkat(dir, name, target, sizeof(target) - 1);
    if (n < 0)
        return -errno;
    target[n] = 0;
    if (!files_may_follow(target, blobs))
        return err_set(r->err, 0, NULL,
                       "%s: a symbolic link out of the folder: put the file itself there", shown);
    fd = openat(dir, target, OPEN_FLAGS);
    if (fd < 0 && errno == ENOENT)
        return err_set(r->err, 0, NULL, "%s: its symbolic link names a file that is missing" WHOLE,
                       shown);
    return fd < 0 ? -errno : fd;
}

int reader_openat(const struct reader *r, const char *name) {
    const char *slash = strchr(name, '/');
    CLEANUP(files_closep) int sub = -1;
    char folder[64];

    if (!slash)
        return files_openat(r, r->dir, name, "../../blobs/", name);
    snprintf(folder, sizeof(folder), "%.*s", (int)(slash - name), name);
    sub = openat(r->dir, folder, O_DIRECTORY | OPEN_FLAGS);
    if (sub < 0 && (errno == ELOOP || errno == ENOTDIR))
        return err_set(r->err, 0, NULL, "%s: %s is no folder", name, folder);
    if (sub < 0)
        return -errno;
    return files_openat(r, sub, slash + 1, "../../../blobs/", name);
}

static bool files_end_in(const char *name, const char *end) {
    size_t n = strlen(name), len = strlen(end);

    return n >= len && strcmp(name + n - len, end) == 0;
}

/* Adds a weight file that is not open yet. Returns 0, -ENOMEM or -EINVAL. */
static int files_add(struct reader *r, const char *name) {
    if (r->n_files == READER_FILES_MAX)
        return err_set(r->err, 0, NULL, "more than %u weight files", READER_FILES_MAX);
    if (!is_printable(name)) /* messages have it */
        return err_set(r->err, 0, NULL, "a weight file has the name %s, which is not printable",
                       quoted(name).s);
    char *copy = strdup(name);
    if (!copy || !array_resize(&r->file, r->n_files + 1, sizeof(*r->file))) {
        free(copy);
        return -ENOMEM;
    }
    r->file[r->n_files++] = (struct reader_file){copy, -1};
    return 0;
}

/* Returns the number of the weight file @name; n_files if it is new. */
static uint32_t files_find(const struct reader *r, const char *name) {
    uint32_t i = 0;

    while (i < r->n_files && strcmp(r->file[i].name, name) != 0)
        i++;
    return i;
}

/* Adds the files that the index names. */
static int files_from_index(struct reader *r, yyjson_val *map) {
    JSON_MEMBERS(key, value, map) {
        const char *name = json_cstr(value);

        if (!name || !json_is_name(value, 255) || strchr(name, '/') || *name == '.' ||
            !files_end_in(name, ".safetensors"))
            return err_set(r->err, 0, NULL,
                           INDEX_FILE ": weight_map.%s is not the name of a safetensors file",
                           quoted(json_cstr(key) ? json_cstr(key) : "").s);
        /* the entries of a shard mostly follow each other */
        if (r->n_files && strcmp(r->file[r->n_files - 1].name, name) == 0)
            continue;
        if (files_find(r, name) == r->n_files)
            TRY(files_add(r, name));
    }
    return r->n_files ? 0 : err_set(r->err, 0, NULL, INDEX_FILE ": weight_map is empty");
}

/* Checks that the files have the tensors that the index names, each in its file. */
static int files_check_index(struct reader *r, yyjson_val *map) {
    JSON_MEMBERS(key, value, map) {
        const char *name = json_cstr(key);
        const struct st_tensor *t = name ? st_find(&r->list, name) : NULL;

        if (!t || strcmp(r->file[t->file].name, json_cstr(value)) != 0)
            return err_set(r->err, 0, NULL, "%s has no tensor %s, which " INDEX_FILE " names",
                           json_cstr(value), quoted(name ? name : "").s);
    }
    return 0;
}

static bool files_exist(int dir, const char *name) {
    return faccessat(dir, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

/* Refuses a file that aria2 has not finished: it has its full size from the start, and zeros where
 * bytes are missing. */
static int files_check_finished(const struct reader *r, const char *name) {
    char control[300];
    int n = snprintf(control, sizeof(control), "%s.aria2", name);

    if ((size_t)n >= sizeof(control) || !files_exist(r->dir, control))
        return 0;
    return err_set(r->err, 0, NULL, "%s is not downloaded whole: %s is there, too", name, control);
}

/* Opens file @i and appends the tensors of its header to @list. */
static int files_open_one(struct reader *r, uint32_t i, struct st_list *list) {
    struct reader_file *f = &r->file[i];
    struct err why = {0};

    TRY(files_check_finished(r, f->name));
    f->fd = reader_openat(r, f->name);
    if (f->fd < 0 && r->err->message[0])
        return -EINVAL;
    if (f->fd == -ENOENT)
        return err_set(r->err, 0, NULL, "%s is missing" WHOLE, f->name);
    if (f->fd < 0)
        return err_set(r->err, 0, NULL, "%s: %s", f->name, strerror(-f->fd));
    int result = st_read(list, i, f->fd, &why);
    if (result == -EINVAL)
        return err_set(r->err, 0, NULL, "%s: %.300s", f->name, why.message);
    return result;
}

int reader_open_file(struct reader *r, const char *name, struct st_list *list, uint32_t *file) {
    TRY(files_add(r, name));
    *file = r->n_files - 1;
    return files_open_one(r, *file, list);
}

/* Weights of a folder. */
struct files_found {
    uint32_t n_safetensors, n_adapters, n_consolidated, n_pickles;
    /* of the last safetensors file */
    char name[256];
    /* of all of them */
    uint64_t bytes;
};

/* Counts the safetensors file @name of the folder @dir. */
static void files_count(int dir, const char *name, struct files_found *out) {
    struct stat st;

    if (strncmp(name, "consolidated", 12) == 0) {
        out->n_consolidated++;
        return;
    }
    out->n_safetensors++;
    if (fstatat(dir, name, &st, 0) == 0)
        out->bytes += (uint64_t)st.st_size;
    snprintf(out->name, sizeof(out->name), "%s", name);
}

static void files_look(const struct reader *r, struct files_found *out) {
    int fd = dup(r->dir);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);

    *out = (struct files_found){0};
    if (!d) {
        files_closep(&fd);
        return;
    }
    rewinddir(d);
    for (struct dirent *e; (e = readdir(d));) {
        bool pickle = files_end_in(e->d_name, ".bin") || files_end_in(e->d_name, ".pt") ||
                      files_end_in(e->d_name, ".pth");

        if (e->d_name[0] == '.') /* macOS has one of attributes for each file: ._NAME */
            continue;
        if (strncmp(e->d_name, "adapter_model", 13) == 0)
            out->n_adapters++;
        else if (pickle)
            out->n_pickles++;
        else if (files_end_in(e->d_name, ".safetensors"))
            files_count(r->dir, e->d_name, out);
    }
    closedir(d);
}

/* Says why a folder without weights of its own is no model. */
static int files_refuse(struct err *err, const struct files_found *found) {
    if (found->n_adapters)
        return err_set(err, 0, NULL,
                       "adapter_model.* is a LoRA adapter, and these are not supported: "
                       "merge it into its base model, and serve the result");
    if (found->n_consolidated)
        return err_set(err, 0, NULL,
                       "consolidated*.safetensors has the names of Mistral's own format, which is "
                       "not supported: download config.json, tokenizer.json and "
                       "model*.safetensors");
    if (found->n_pickles)
        return err_set(err, 0, NULL,
                       "the weights are pickle files (.bin, .pt), which are programs that loading "
                       "would run; take a repository with safetensors");
    return err_set(err, 0, NULL, "no *.safetensors file" WHOLE);
}

/* Finds the only weight file of a folder without an index. */
static int files_find_single(struct reader *r) {
    struct files_found found;

    files_look(r, &found);
    if (files_exist(r->dir, "model.safetensors"))
        return files_add(r, "model.safetensors");
    if (found.n_safetensors == 1)
        return files_add(r, found.name);
    if (found.n_safetensors > 1)
        return err_set(r->err, 0, NULL,
                       "%u safetensors files and no " INDEX_FILE
                       ", which says what they are: download it, too",
                       found.n_safetensors);
    return files_refuse(r->err, &found);
}

int reader_open_files(struct reader *r) {
    CLEANUP(json_doc_freep) yyjson_doc *index = NULL;
    yyjson_val *map = NULL;

    TRY(reader_json(r, INDEX_FILE, INDEX_MAX, &index));
    if (index) {
        map = yyjson_obj_get(yyjson_doc_get_root(index), "weight_map");
        TRY(files_from_index(r, map));
    } else {
        TRY(files_find_single(r));
    }
    for (uint32_t i = 0; i < r->n_files; i++)
        TRY(files_open_one(r, i, &r->list));
    return files_check_index(r, map);
}

bool reader_is_folder(const char *dir, uint64_t *bytes) {
    CLEANUP(files_closep) int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const struct reader r = {.dir = fd};
    struct files_found found;

    if (fd < 0 || !files_exist(fd, "config.json"))
        return false;
    files_look(&r, &found);
    *bytes = found.bytes;
    return found.n_safetensors > 0 || found.n_adapters > 0 || found.n_consolidated > 0 ||
           found.n_pickles > 0;
}

void reader_explain(const char *dir, struct err *err) {
    CLEANUP(files_closep) int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const struct reader r = {.dir = fd};
    struct files_found found;

    if (fd < 0)
        return;
    files_look(&r, &found);
    if (files_exist(fd, "model_index.json"))
        err_set(err, 0, NULL,
                "model_index.json is that of a diffusion model, which weft does not "
                "serve");
    else if (files_exist(fd, "config.json") || found.n_adapters || found.n_consolidated ||
             found.n_pickles)
        files_refuse(err, &found);
    else if (found.n_safetensors)
        err_set(err, 0, NULL, "the folder has safetensors, but config.json is missing" WHOLE);
    else if (files_exist(fd, "snapshots"))
        err_set(err, 0, NULL,
                "the folder is a repository in the hub's cache: give its snapshots/COMMIT, or "
                "hf:OWNER/REPO");
}
