/*
 * Layouts of the stores:
 *   weft, LM Studio   ROOT/[OWNER/REPO/...]FILE.gguf, or config.json and *.safetensors there
 *   hub               ROOT/models--OWNER--REPO/refs/main holds the name of a folder below
 *                     snapshots/, in which files are links to ../../blobs/CHECKSUM
 *   Ollama            ROOT/manifests/HOST/NAMESPACE/MODEL/TAG is JSON whose layer of the type
 *                     ...image.model has the digest of ROOT/blobs/sha256-HEX The other shards are
 *                     found beside the first one by name, so paths are those of the links and not
 *                     of their targets.
 */

#include "base/model_dir.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/files.h"
#include "base/json_read.h"
#include "base/printable.h"

#define DEPTH_MAX 6        /* most levels of folders below a root */
#define MANIFEST_MAX 65536 /* most bytes of a manifest */
#define MODEL_LAYER "application/vnd.ollama.image.model"

const char *model_store_name(enum model_store store) {
    static const char *const names[MODEL_N_STORES] = {"weft", "hub", "lmstudio", "ollama"};

    assert(store < MODEL_N_STORES);
    return names[store];
}

/* A list under construction. Invariant: file[] and ids[] have room for @cap, and n <= cap. */
struct lister {
    struct model_list *list;
    struct file_id {
        dev_t dev;
        ino_t ino;
        /* the path is a symbolic link */
        bool link;
    } * ids; /* ids[i] belongs to list->file[i] */
    size_t cap;
    /* the file that is visited was reached by a symbolic link */
    bool link;
    enum model_store store;
    /* length of the path up to the repository's name */
    size_t root_len;
    /* name of the repository; NULL: the two folders below the root give it */
    const char *repo;
    /* most levels below the root at which a folder of safetensors is a model; -1: it never is */
    int folder_depth;
};

/* ---- one model ---- */

static void model_file_deinit(struct model_file *f) {
    free(f->name);
    free(f->path);
    free(f->repo);
}

void model_list_deinit(struct model_list *l) {
    for (size_t i = 0; i < l->n; i++)
        model_file_deinit(&l->file[i]);
    free(l->file);
    *l = (struct model_list){0};
}

/* Makes room for one more file in the list and in ids. Returns 0 or -ENOMEM. */
static int model_dir_grow(struct lister *l) {
    size_t cap = MAX(2 * l->cap, (size_t)16);

    if (l->list->n < l->cap)
        return 0;
    if (!array_resize(&l->list->file, cap, sizeof(*l->list->file)) ||
        !array_resize(&l->ids, cap, sizeof(*l->ids)))
        return -ENOMEM;
    l->cap = cap;
    return 0;
}

/* Returns the entry of the same file as @id, or the number of entries. A file has one entry, except
 * for names in Ollama's store: each was made by its user, and the file has no other name there. */
static size_t model_dir_find_same(const struct lister *l, const struct file_id *id) {
    size_t i = 0;

    while (i < l->list->n && (l->ids[i].dev != id->dev || l->ids[i].ino != id->ino ||
                              (l->store == MODEL_OLLAMA && l->list->file[i].store == MODEL_OLLAMA)))
        i++;
    return i;
}

/* Returns true if @path, which is a symbolic link if @link, gives its file a better name than entry
 * @i: the order in which a folder is read must not decide, since it changes with each new name. */
static bool is_better(const struct lister *l, const char *path, bool link, size_t i) {
    if (l->store != l->list->file[i].store)
        return false;
    if (link == l->ids[i].link)
        return strcmp(path, l->list->file[i].path) < 0;
    return !link;
}

/* Adds @f and takes over its strings; a string that is NULL means -ENOMEM. Leaves out worse names
 * of a file, names and paths with unprintable characters, and files beyond MODEL_LIST_MAX. Returns
 * 0 or -ENOMEM. */
static int model_dir_add(struct lister *l, struct model_file *f, const struct stat *st) {
    struct file_id id = {st->st_dev, st->st_ino, l->link};
    int r = f->name && f->path && f->repo ? model_dir_grow(l) : -ENOMEM;
    size_t i = model_dir_find_same(l, &id);
    bool known = i < l->list->n;

    if (r < 0 || i == MODEL_LIST_MAX || !is_printable(f->path) || !is_printable(f->name) ||
        (known && !is_better(l, f->path, id.link, i))) {
        model_file_deinit(f);
        return r;
    }
    if (known)
        model_file_deinit(&l->list->file[i]);
    else
        l->list->n++;
    l->list->file[i] = *f;
    l->ids[i] = id;
    return 0;
}

/* Adds the sizes of the shards after the first, and counts missing shards. */
static void sum_shards(struct model_file *f, size_t prefix_len) {
    char path[4096];
    struct stat st;

    for (uint32_t i = 2; i <= f->n_files; i++) {
        int n = snprintf(path, sizeof(path), "%.*s-%05u-of-%05u.gguf", (int)prefix_len, f->path, i,
                         f->n_files);

        if (n > 0 && (size_t)n < sizeof(path) && stat(path, &st) == 0 && S_ISREG(st.st_mode))
            f->bytes += (uint64_t)st.st_size;
        else
            f->n_missing++;
    }
}

/* Returns "OWNER/REPO", the first two folders of @path below the root; "" if there are fewer. */
static char *repo_of_path(const struct lister *l, const char *path) {
    const char *below = path + l->root_len + 1;
    const char *owner = strchr(below, '/'), *repo = owner ? strchr(owner + 1, '/') : NULL;

    if (l->repo)
        return strdup(l->repo);
    if (repo)
        return strndup(below, (size_t)(repo - below));
    return strdup("");
}

/* Adds a model of one file, or the first shard of a model; ignores other files. A visit_fn. */
static int add_gguf(struct lister *l, const char *path, const char *name, const struct stat *st) {
    struct model_name parts;

    if (!model_name_parse(name, &parts) || parts.shard != 1)
        return 0;
    struct model_file f = {
        .name = strndup(name, parts.stem_len),
        .path = strdup(path),
        .repo = repo_of_path(l, path),
        .store = l->store,
        .n_files = parts.n_shards,
        .bytes = (uint64_t)st->st_size,
    };
    if (f.path)
        sum_shards(&f, (size_t)(name - path) + parts.stem_len);
    return model_dir_add(l, &f, st);
}

/* ---- folders of safetensors ---- */

/* Contents of one folder. of: number of shards that a name promises. */
struct folder_seen {
    bool config, gguf;
    uint32_t n_single, n_shards, of;
    uint64_t single_bytes, shard_bytes;
};

static bool folder_ends_in(const char *name, const char *end) {
    size_t n = strlen(name), len = strlen(end);

    return n > len && strcasecmp(name + n - len, end) == 0;
}

/* Counts the file @name of @bytes. */
static void folder_see(struct folder_seen *f, const char *name, uint64_t bytes) {
    uint32_t of = model_name_shards(name);

    f->config |= strcmp(name, "config.json") == 0;
    f->gguf |= folder_ends_in(name, ".gguf");
    if (!folder_ends_in(name, ".safetensors") || name[0] == '.')
        return;
    if (of == 0) {
        f->n_single++;
        f->single_bytes += bytes;
        return;
    }
    f->n_shards++;
    f->of = MAX(f->of, of);
    f->shard_bytes += bytes;
}

/* Adds the folder @dir if it is a model: config.json and one safetensors file or shards, which may
 * lie beside the same weights in one file. Returns 0 or -ENOMEM. */
static int add_folder(struct lister *l, const char *dir, const struct folder_seen *f) {
    bool sharded = f->of > 0;
    const char *name = l->repo ? l->repo : dir, *slash = strrchr(name, '/');
    char below[4096];
    struct stat st;

    if (!f->config || f->gguf || (!sharded && f->n_single != 1) || stat(dir, &st) < 0 ||
        snprintf(below, sizeof(below), "%s/", dir) >= (int)sizeof(below))
        return 0;
    struct model_file file = {
        .name = strdup(slash ? slash + 1 : name),
        .path = strdup(dir),
        .repo = repo_of_path(l, below),
        .store = l->store,
        .folder = true,
        .n_files = sharded ? f->of : 1,
        .n_missing = f->of > f->n_shards ? f->of - f->n_shards : 0,
        .bytes = sharded ? f->shard_bytes : f->single_bytes,
    };
    l->link = false;
    return model_dir_add(l, &file, &st);
}

/* ---- folders ---- */

const char *model_dir_part(uint32_t i) {
    static const char *const parts[] = {"1_Pooling", "2_Dense", "3_Dense"};

    return i < ARRAY_SIZE(parts) ? parts[i] : NULL;
}

/* Returns true if a folder called @name is a part of the model in which it lies. */
static bool model_dir_is_part(const char *name) {
    uint32_t i = 0;

    while (model_dir_part(i) && strcmp(model_dir_part(i), name) != 0)
        i++;
    return model_dir_part(i) != NULL;
}

typedef int (*visit_fn)(struct lister *l, const char *path, const char *name,
                        const struct stat *st);

/* Calls @visit for every regular file below @dir, and adds the folders that are models. Follows
 * links to files and not to folders. */
static int walk(struct lister *l, const char *dir, int depth, visit_fn visit) {
    DIR *d = depth < DEPTH_MAX ? opendir(dir) : NULL;
    struct folder_seen seen = {0};
    struct dirent *e;
    int r = 0;

    while (d && r == 0 && (e = readdir(d))) {
        struct stat st, link;
        char path[4096];
        int n = snprintf(path, sizeof(path), "%s/%s", dir, e->d_name);

        if (e->d_name[0] == '.' || n < 0 || (size_t)n >= sizeof(path) || lstat(path, &link) < 0 ||
            stat(path, &st) < 0)
            continue;
        if (S_ISDIR(link.st_mode)) {
            if (!model_dir_is_part(e->d_name))
                r = walk(l, path, depth + 1, visit);
        } else if (S_ISREG(st.st_mode)) {
            folder_see(&seen, e->d_name, (uint64_t)st.st_size);
            l->link = S_ISLNK(link.st_mode);
            r = visit(l, path, path + strlen(dir) + 1, &st);
        }
    }
    if (d)
        closedir(d);
    if (r != 0 || depth > l->folder_depth)
        return r;
    return add_folder(l, dir, &seen);
}

/* Reads the first line of a small file. Returns false if there is none. */
static bool model_dir_read_line(const char *path, char *out, size_t size) {
    FILE *f = files_open(path);
    bool ok = f && fgets(out, (int)size, f);

    if (f)
        fclose(f);
    if (ok)
        out[strcspn(out, "\r\n")] = 0;
    return ok && *out;
}

/* Finds the folder of the newest snapshot; "" if there is none. */
static void newest_snapshot(const char *dir, char *out, size_t size) {
    DIR *d = opendir(dir);
    struct timespec newest = {0};
    struct dirent *e;

    out[0] = 0;
    while (d && (e = readdir(d))) {
        struct stat st;

        if (e->d_name[0] == '.' || fstatat(dirfd(d), e->d_name, &st, 0) < 0 || !S_ISDIR(st.st_mode))
            continue;
        if (!out[0] || st.st_mtim.tv_sec > newest.tv_sec) {
            newest = st.st_mtim;
            snprintf(out, size, "%s", e->d_name);
        }
    }
    if (d)
        closedir(d);
}

/* Lists one folder "models--OWNER--REPO": the snapshot of its main branch, or else its newest
 * snapshot. */
static int list_hub_repo(struct lister *l, const char *root, const char *folder) {
    char repo[256], path[4096], commit[256];
    struct stat st;

    snprintf(repo, sizeof(repo), "%s", folder + strlen("models--"));
    char *dashes = strstr(repo, "--");
    if (dashes) {
        *dashes = '/';
        memmove(dashes + 1, dashes + 2, strlen(dashes + 2) + 1);
    }
    snprintf(path, sizeof(path), "%s/%s/refs/main", root, folder);
    bool known = model_dir_read_line(path, commit, sizeof(commit)) && !strchr(commit, '/');
    if (known) {
        snprintf(path, sizeof(path), "%s/%s/snapshots/%s", root, folder, commit);
        known = commit[0] != '.' && stat(path, &st) == 0;
    }
    if (!known) {
        snprintf(path, sizeof(path), "%s/%s/snapshots", root, folder);
        newest_snapshot(path, commit, sizeof(commit));
        if (!commit[0])
            return 0;
        snprintf(path, sizeof(path), "%s/%s/snapshots/%s", root, folder, commit);
    }
    l->repo = repo;
    int r = walk(l, path, 0, add_gguf);
    l->repo = NULL;
    return r;
}

static int list_hub(struct lister *l, const char *root) {
    DIR *d = opendir(root);
    struct dirent *e;
    int r = 0;

    while (d && r == 0 && (e = readdir(d)))
        if (strncmp(e->d_name, "models--", 8) == 0)
            r = list_hub_repo(l, root, e->d_name);
    if (d)
        closedir(d);
    return r;
}

/* ---- Ollama ---- */

/* Finds the digest of the layer that is the model. Returns false if there is none. */
static bool manifest_digest(const char *text, size_t len, char digest[80]) {
    yyjson_doc *doc = yyjson_read(text, len, 0);
    bool found = false;

    JSON_EACH(layer, yyjson_obj_get(yyjson_doc_get_root(doc), "layers")) {
        const char *type = json_cstr(yyjson_obj_get(layer, "mediaType"));
        const char *sum = json_cstr(yyjson_obj_get(layer, "digest"));

        if (found || !type || !sum || strcmp(type, MODEL_LAYER) != 0)
            continue;
        snprintf(digest, 80, "%.79s", sum);
        found = true;
    }
    yyjson_doc_free(doc);
    return found;
}

static bool is_digest(const char *s) {
    return strncmp(s, "sha256:", 7) == 0 && strlen(s) == 71 &&
           strspn(s + 7, "0123456789abcdef") == 64;
}

/* Returns HOST/NAMESPACE/MODEL/TAG as Ollama writes it: "llama3.2:3b", "hf.co/OWNER/REPO:TAG". */
static char *ollama_name(const char *below) {
    static const char *const implied[] = {"registry.ollama.ai/library/", "registry.ollama.ai/"};
    const char *tag = strrchr(below, '/');
    char *out = NULL;

    for (size_t i = 0; i < ARRAY_SIZE(implied); i++)
        if (strncmp(below, implied[i], strlen(implied[i])) == 0) {
            below += strlen(implied[i]);
            break;
        }
    if (!tag || tag <= below)
        return strdup("");
    if (asprintf(&out, "%.*s:%s", (int)(tag - below), below, tag + 1) < 0)
        return NULL;
    return out;
}

/* Adds the model that a manifest of Ollama names, if its blob exists. A visit_fn. */
static int add_manifest(struct lister *l, const char *path, const char *name,
                        const struct stat *unused) {
    char text[MANIFEST_MAX], digest[80], blob[4096];
    FILE *f = fopen(path, "re");
    struct stat st;
    size_t len = f ? fread(text, 1, sizeof(text), f) : 0;

    if (f)
        fclose(f);
    if (!manifest_digest(text, len, digest) || !is_digest(digest))
        return 0;
    int n = snprintf(blob, sizeof(blob), "%.*s/blobs/sha256-%s",
                     (int)(l->root_len - strlen("/manifests")), path, digest + 7);
    if (n < 0 || (size_t)n >= sizeof(blob) || stat(blob, &st) < 0 || !S_ISREG(st.st_mode))
        return 0;
    struct model_file file = {
        .name = ollama_name(path + l->root_len + 1),
        .path = strdup(blob),
        .repo = strdup(""),
        .store = MODEL_OLLAMA,
        .n_files = 1,
        .bytes = (uint64_t)st.st_size,
    };
    return model_dir_add(l, &file, &st);
}

static int list_ollama(struct lister *l, const char *root) {
    char path[4096];
    int n = snprintf(path, sizeof(path), "%s/manifests", root);

    if (n < 0 || (size_t)n >= sizeof(path))
        return 0;
    l->root_len = strlen(path);
    return walk(l, path, 0, add_manifest);
}

/* ---- the list ---- */

static int model_dir_compare(const void *a, const void *b) {
    const struct model_file *x = a, *y = b;

    int paths = strcmp(x->path, y->path);

    if (x->store != y->store) {
        if (x->store < y->store)
            return -1;
        return 1;
    }
    if (paths)
        return paths;
    return strcmp(x->name, y->name);
}

static bool model_dir_is_taken(const struct model_list *l, size_t i, const char *name) {
    for (size_t k = 0; k < i; k++)
        if (strcasecmp(l->file[k].name, name) == 0)
            return true;
    return false;
}

/* Makes names unique. The first file of the list keeps a name; a later file with the same name gets
 * its repository's name as a prefix, then the store's name and a number. */
static int make_unique(struct model_list *l) {
    for (size_t i = 0; i < l->n; i++) {
        struct model_file *f = &l->file[i];
        CLEANUP(freep) char *stem = NULL;

        for (unsigned k = 0; model_dir_is_taken(l, i, f->name); k++) {
            char *name = NULL;
            int n;

            if (!stem) {
                stem = STEAL(f->name);
                f->name = strdup("");
            }
            if (k == 0)
                n = asprintf(&name, "%s/%s", *f->repo ? f->repo : model_store_name(f->store), stem);
            else
                n = asprintf(&name, "%s/%s/%s~%u", model_store_name(f->store), f->repo, stem, k);
            free(f->name);
            f->name = n < 0 ? NULL : name;
            if (!f->name)
                return -ENOMEM;
        }
    }
    return 0;
}

/* Values of lister.folder_depth. A snapshot of the hub's cache may have folders of other models. */
static const int folder_depth[MODEL_N_STORES] = {
    [MODEL_WEFT] = DEPTH_MAX, [MODEL_HUB] = 0, [MODEL_LMSTUDIO] = DEPTH_MAX, [MODEL_OLLAMA] = -1};

int model_list_read(struct model_list *out, const struct model_dirs *d) {
    struct model_list list = {0};
    struct lister l = {.list = &list};
    int r = 0;

    for (int store = 0; r == 0 && store < MODEL_N_STORES; store++) {
        const char *root = d->root[store];

        if (!root)
            continue;
        l.store = (enum model_store)store;
        l.root_len = strlen(root);
        l.folder_depth = folder_depth[store];
        if (store == MODEL_HUB)
            r = list_hub(&l, root);
        else if (store == MODEL_OLLAMA)
            r = list_ollama(&l, root);
        else
            r = walk(&l, root, 0, add_gguf);
    }
    free(l.ids);
    if (r == 0 && list.n > 0) {
        qsort(list.file, list.n, sizeof(*list.file), model_dir_compare);
        r = make_unique(&list);
    }
    if (r < 0) {
        model_list_deinit(&list);
        return r;
    }
    *out = list;
    return 0;
}

/* ---- root folders ---- */

/* Returns $VAR followed by @below, or the first folder of systemd's list. NULL: the variable is not
 * set, or memory is short; then *r is -ENOMEM. */
static char *from_env(const char *var, const char *below, int *r) {
    const char *value = getenv(var);
    char folder[PATH_MAX], *out = NULL;

    if (strcmp(var, "STATE_DIRECTORY") == 0)
        value = files_state_folder(folder, sizeof(folder)) ? folder : NULL;
    if (!value || !*value)
        return NULL;
    if (asprintf(&out, "%s%s", value, below) < 0) {
        *r = -ENOMEM;
        return NULL;
    }
    for (size_t n = strlen(out); n > 1 && out[n - 1] == '/'; n--)
        out[n - 1] = 0;
    return out;
}

/* A candidate for a root: a folder named by an environment variable. */
struct place {
    const char *var, *below;
    /* a default place, taken only if it is a folder */
    bool if_there;
};

static const struct place places[MODEL_N_STORES][5] = {
    [MODEL_WEFT] = {{"WEFT_MODELS", "", false},
                    {"STATE_DIRECTORY", "/models", false},
                    {"XDG_DATA_HOME", "/weft/models", false},
                    {"HOME", "/.local/share/weft/models", false}},
    [MODEL_HUB] = {{"HF_HUB_CACHE", "", false},
                   {"HF_HOME", "/hub", false},
                   {"XDG_CACHE_HOME", "/huggingface/hub", false},
                   {"HOME", "/.cache/huggingface/hub", false}},
    [MODEL_LMSTUDIO] = {{"LMSTUDIO_MODELS", "", false},
                        {"HOME", "/.lmstudio/models", true},
                        {"HOME", "/.cache/lm-studio/models", true}},
    [MODEL_OLLAMA] = {{"OLLAMA_MODELS", "", false}, {"HOME", "/.ollama/models", true}},
};

static const char *const last[MODEL_N_STORES] = {
    [MODEL_WEFT] = "/var/lib/weft/models",
    [MODEL_OLLAMA] = "/usr/share/ollama/.ollama/models",
};

int model_dirs_init(struct model_dirs *d, const char *option) {
    struct model_dirs dirs = {0};
    int r = 0;

    if (option && !(dirs.root[MODEL_WEFT] = strdup(option)))
        r = -ENOMEM;
    for (int store = 0; store < MODEL_N_STORES; store++) {
        char **root = &dirs.root[store];

        for (const struct place *p = places[store]; r == 0 && !*root && p->var; p++) {
            *root = from_env(p->var, p->below, &r);
            if (*root && p->if_there && !files_is_folder(*root)) {
                free(*root);
                *root = NULL;
            }
        }
        if (r == 0 && !*root && last[store] && !(*root = strdup(last[store])))
            r = -ENOMEM;
    }
    if (r < 0) {
        model_dirs_deinit(&dirs);
        return r;
    }
    *d = dirs;
    return 0;
}

void model_dirs_deinit(struct model_dirs *d) {
    for (int store = 0; store < MODEL_N_STORES; store++)
        free(d->root[store]);
    *d = (struct model_dirs){0};
}
