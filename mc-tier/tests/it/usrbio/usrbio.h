/* The structures of 3FS's hf3fs_usrbio.h that the tests compile, see src/usrbio/library.rs. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct hf3fs_iov {
    uint8_t *base;
    void *iovh;
    char id[16];
    char mount_point[256];
    size_t size;
    size_t block_size;
    int numa;
};

struct hf3fs_ior {
    struct hf3fs_iov iov;
    void *iorh;
    char mount_point[256];
    bool for_read;
    int io_depth;
    int priority;
    int timeout;
    uint64_t flags;
};

struct hf3fs_cqe {
    int32_t index;
    int32_t reserved;
    int64_t result;
    const void *userdata;
};
