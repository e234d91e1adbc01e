#include "checkpoint/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/files.h"
#include "base/model_dir.h"
#include "base/try.h"
#include "checkpoint/reader.h"
#include "text/hf_tokenizer.h"

/* Most bytes of the tensors whose values are converted: norms, routers, convolutions. */
#define CONVERTED_MAX ((size_t)4 << 30)
#define CONFIG_MAX (4u << 20)

/* Refuses the pointers of Git LFS, which a repository that was cloned without it has in place of
 * large files. */
static int checkpoint_check_pointer(const struct reader *r, const char *name,
                                    const struct buf *text) {
    static const char begin[] = "version https://git-lfs.";
    size_t n = sizeof(begin) - 1;

    if (text->len < n || memcmp(text->data, begin, n) != 0)
        return 0;
    return err_set(r->err, 0, NULL,
                   "%s: a pointer of Git LFS: run git lfs pull in its repository, or download the "
                   "file itself",
                   name);
}

/* Appends the open file @fd, the folder's file @name, to @out. Returns 0 or -errno; -EINVAL: it is
 * too large or no regular file. */
static int checkpoint_read_file(const struct reader *r, int fd, const char *name, struct buf *out) {
    struct stat st;

    if (fstat(fd, &st) < 0)
        return -errno;
    if (!S_ISREG(st.st_mode))
        return err_set(r->err, 0, NULL, "%s: not a regular file", name);
    if ((uint64_t)st.st_size > out->max - out->len)
        return err_set(r->err, 0, NULL, "%s: %lld bytes; at most %zu are allowed", name,
                       (long long)st.st_size, out->max);
    for (;;) {
        TRY(buf_reserve(out, 1 << 16));
        ssize_t n = read(fd, out->data + out->len, MIN((size_t)1 << 16, out->max - out->len));

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        if (n == 0)
            return checkpoint_check_pointer(r, name, out);
        out->len += (size_t)n;
        out->data[out->len] = 0;
    }
}

/* A small file of the folder. */
struct small_file {
    const char *name;
    uint32_t max;
    bool must;
    struct buf text;
};

enum {
    CONFIG,
    TOKENIZER,
    SENTENCEPIECE,
    ADDED_TOKENS,
    TOKENIZER_CONFIG,
    SPECIAL,
    GENERATION,
    TEMPLATE,
    N_SMALL
};

static int checkpoint_read_small(const struct reader *r, struct small_file *f) {
    CLEANUP(files_closep) int fd = reader_openat(r, f->name);

    /* room for the piece by which checkpoint_read_file() reads on */
    buf_init(&f->text, (size_t)f->max + (1 << 16));
    if (fd == -ENOENT && !f->must)
        return 0;
    if (fd == -ENOENT)
        return err_set(r->err, 0, NULL, "%s is missing", f->name);
    if (fd < 0)
        return r->err->message[0] ? -EINVAL
                                  : err_set(r->err, 0, NULL, "%s: %s", f->name, strerror(-fd));
    return checkpoint_read_file(r, fd, f->name, &f->text);
}

static int checkpoint_parse(const struct reader *r, struct small_file *f, yyjson_doc **out) {
    TRY(checkpoint_read_small(r, f));
    if (!f->text.data)
        return 0;
    int result = json_parse(out, f->text.data, f->text.len, 0);

    if (result == -EINVAL)
        return err_set(r->err, 0, NULL, "%s: not JSON (%s)", f->name,
                       json_why(f->text.data, f->text.len, 0).s);
    return result;
}

int reader_json(const struct reader *r, const char *name, uint32_t max, yyjson_doc **out) {
    struct small_file f = {name, max, false, {0}};

    *out = NULL;
    int result = checkpoint_parse(r, &f, out);
    buf_deinit(&f.text);
    return result;
}

static struct gguf_str checkpoint_text(const struct small_file *f) {
    return (struct gguf_str){f->text.data, f->text.len};
}

int reader_open(struct reader *r, const char *dir, size_t data_max, struct err *err) {
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0) {
        int e = errno;

        err_set(err, 0, NULL, "%s: %s", dir, strerror(e));
        return -e;
    }
    *r = (struct reader){.dir = fd, .err = err};
    st_list_init(&r->list);
    gguf_build_init(&r->build, data_max);
    return 0;
}

int reader_read_config(struct reader *r, struct buf *text) {
    struct small_file f = {"config.json", CONFIG_MAX, true, {0}};
    int result = checkpoint_read_small(r, &f);

    *text = f.text;
    TRY(result);
    return reader_open_config(r, text->data, text->len);
}

void reader_close(struct reader *r) {
    files_closep(&r->dir);
    for (uint32_t i = 0; i < r->n_files; i++) {
        files_closep(&r->file[i].fd);
        free(r->file[i].name);
    }
    free(r->file);
    yyjson_doc_free(r->doc);
    st_list_deinit(&r->list);
    gguf_build_deinit(&r->build);
}

/* Opens the header and the weight files, which it duplicates, as a model. */
static int checkpoint_join(const struct reader *r, struct gguf **out) {
    CLEANUP(files_closep) int head = gguf_build_finish((struct gguf_build *)&r->build);
    CLEANUP(freep) int *fds = calloc(r->n_files + 1, sizeof(*fds));

    if (!fds)
        return -ENOMEM;
    if (head == -EMSGSIZE)
        return err_set(r->err, 0, NULL, "tokenizer and tensor names exceed the limit of 32 MiB");
    TRY(head);
    fds[0] = head;
    for (uint32_t i = 0; i < r->n_files; i++)
        fds[i + 1] = r->file[i].fd;
    return gguf_open_fds(out, fds, r->n_files + 1, r->err);
}

/* Names the file that a folder without a tokenizer's file has in its place. */
static int checkpoint_check_tokenizer(const struct reader *r, const struct small_file *small) {
    static const char *const other[] = {"tekken.json", "vocab.json", "vocab.txt", "spiece.model"};

    if (small[TOKENIZER].text.data || small[SENTENCEPIECE].text.data)
        return 0;
    for (size_t i = 0; i < ARRAY_SIZE(other); i++)
        if (faccessat(r->dir, other[i], F_OK, AT_SYMLINK_NOFOLLOW) == 0)
            return err_set(r->err, 0, NULL,
                           "tokenizer.json is missing, and %s is not read: "
                           "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER) of the "
                           "library transformers writes it",
                           other[i]);
    return 0; /* hf_tokenizer_keys() refuses it */
}

/* Writes the keys that the small files of the folder give. */
static int checkpoint_write_keys(struct reader *r, struct small_file *small) {
    TRY(reader_write_keys(r));
    if (r->row->drafter && !small[TOKENIZER].text.data && !small[SENTENCEPIECE].text.data)
        return 0; /* its tokens are those of the model for which it drafts */
    TRY(checkpoint_check_tokenizer(r, small));
    const struct hf_tokenizer_files files = {
        .tokenizer = checkpoint_text(&small[TOKENIZER]),
        .sentencepiece = checkpoint_text(&small[SENTENCEPIECE]),
        .added_tokens = checkpoint_text(&small[ADDED_TOKENS]),
        .tokenizer_config = checkpoint_text(&small[TOKENIZER_CONFIG]),
        .special_tokens_map = checkpoint_text(&small[SPECIAL]),
        .generation_config = checkpoint_text(&small[GENERATION]),
        .config = checkpoint_text(&small[CONFIG]),
        .chat_template = checkpoint_text(&small[TEMPLATE]),
        .n_vocab = r->n_vocab,
    };

    TRY(hf_tokenizer_keys(&files, &r->build.keys, r->err));
    TRY(reader_write_pooling(r));
    return reader_write_sampling(r, files.generation_config.data, files.generation_config.len);
}

/* Reads all parts of the folder r->dir; without @out all but the weights. */
static int checkpoint_read(struct reader *r, struct small_file *small, struct gguf **out) {
    for (int i = 0; i < N_SMALL; i++)
        if (!small[TOKENIZER].text.data || (i != SENTENCEPIECE && i != ADDED_TOKENS))
            TRY(checkpoint_read_small(r, &small[i]));
    TRY(reader_open_config(r, small[CONFIG].text.data, small[CONFIG].text.len));
    if (!out)
        return checkpoint_write_keys(r, small);
    TRY(reader_open_files(r));
    reader_count_mtp(r);
    TRY(checkpoint_write_keys(r, small));
    TRY(reader_write_tensors(r));
    TRY(reader_write_dense(r));
    return checkpoint_join(r, out);
}

int checkpoint_check(const char *dir, struct err *err) {
    return checkpoint_open(NULL, dir, err);
}

int checkpoint_open(struct gguf **out, const char *dir, struct err *err) {
    struct err own = {0};
    struct small_file small[N_SMALL] = {
        [CONFIG] = {"config.json", CONFIG_MAX, true, {0}},
        [TOKENIZER] = {"tokenizer.json", HF_TOKENIZER_FILE_MAX, false, {0}},
        [SENTENCEPIECE] = {"tokenizer.model", HF_TOKENIZER_FILE_MAX, false, {0}},
        [ADDED_TOKENS] = {"added_tokens.json", CONFIG_MAX, false, {0}},
        [TOKENIZER_CONFIG] = {"tokenizer_config.json", CONFIG_MAX, false, {0}},
        [SPECIAL] = {"special_tokens_map.json", CONFIG_MAX, false, {0}},
        [GENERATION] = {"generation_config.json", CONFIG_MAX, false, {0}},
        [TEMPLATE] = {"chat_template.jinja", CONFIG_MAX, false, {0}},
    };
    CLEANUP(reader_close) struct reader r = {.dir = -1};

    TRY(reader_open(&r, dir, CONVERTED_MAX, err ? err : &own));
    int result = checkpoint_read(&r, small, out);
    for (int i = 0; i < N_SMALL; i++)
        buf_deinit(&small[i].text);
    return result;
}

int checkpoint_find_model(const char *path, char **file, uint64_t *bytes, struct err *err) {
    uint64_t own = 0;
    bool checkpoint = reader_is_folder(path, &own);

    *file = NULL;
    int r = model_in_folder(path, file, bytes, checkpoint ? NULL : err);
    if (r == -ENOENT && !checkpoint) {
        reader_explain(path, err);
        return -EINVAL;
    }
    if (!checkpoint || r == -ENOMEM)
        return r;
    *bytes = own;
    if (r < 0)
        return 0;
    err_set(err, 0, NULL,
            "the folder has safetensors and a GGUF file: give the path of the GGUF file (%.200s) "
            "or a folder without it",
            *file);
    free(*file);
    *file = NULL;
    return -EINVAL;
}

int checkpoint_open_model(struct gguf **out, const char *path, struct err *err) {
    CLEANUP(freep) char *file = NULL;
    uint64_t bytes;

    if (!files_is_folder(path))
        return gguf_open(out, path, err);
    TRY(checkpoint_find_model(path, &file, &bytes, err));
    if (file)
        return gguf_open(out, file, err);
    return checkpoint_open(out, path, err);
}
