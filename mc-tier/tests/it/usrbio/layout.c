/* Prints sizes and offsets, in the order in which a test of src/usrbio/library.rs expects them. */
#include <stdio.h>

#include "usrbio.h"

#define SIZE(type) printf("%zu\n", sizeof(struct type))
#define OFFSET(type, field) printf("%zu\n", offsetof(struct type, field))

int main(void) {
    SIZE(hf3fs_iov);
    OFFSET(hf3fs_iov, iovh);
    OFFSET(hf3fs_iov, id);
    OFFSET(hf3fs_iov, mount_point);
    OFFSET(hf3fs_iov, size);
    OFFSET(hf3fs_iov, block_size);
    OFFSET(hf3fs_iov, numa);
    SIZE(hf3fs_ior);
    OFFSET(hf3fs_ior, iorh);
    OFFSET(hf3fs_ior, mount_point);
    OFFSET(hf3fs_ior, for_read);
    OFFSET(hf3fs_ior, io_depth);
    OFFSET(hf3fs_ior, priority);
    OFFSET(hf3fs_ior, timeout);
    OFFSET(hf3fs_ior, flags);
    SIZE(hf3fs_cqe);
    OFFSET(hf3fs_cqe, reserved);
    OFFSET(hf3fs_cqe, result);
    OFFSET(hf3fs_cqe, userdata);
    return 0;
}
