#include "tests/text/hf_folder.h"

#include <errno.h>
#include <sys/mman.h>

#include "base/files.h"
#include "base/try.h"

int hf_folder_load(struct tokenizer **out, const struct hf_tokenizer_files *in, struct err *err) {
    CLEANUP(gguf_keys_deinit) struct gguf_keys keys = {0};
    CLEANUP(buf_deinit) struct buf file = {.max = 64u << 20};
    CLEANUP(files_closep) int fd = -1;
    CLEANUP(gguf_freep) struct gguf *g = NULL;

    gguf_keys_init(&keys);
    TRY(hf_tokenizer_keys(in, &keys, err));
    TRY(gguf_keys_file(&keys, &file));
    fd = memfd_create("tokenizer", MFD_CLOEXEC);
    if (fd < 0 || write(fd, file.data, file.len) != (ssize_t)file.len)
        return -EIO;
    TRY(gguf_open_fds(&g, &fd, 1, err));
    return tokenizer_new(out, g, err);
}
