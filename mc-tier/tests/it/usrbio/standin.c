/*
 * A stand-in for libhf3fs_api_shared.so: the functions that src/usrbio/library.rs calls, with pread
 * and pwrite on any file system. A directory is a mount point when it has a directory 3fs-virt. The
 * file 3fs-virt/mode says what goes wrong, by words:
 *
 *   short     a request does at most 1000 bytes
 *   reverse   the last request is done first
 *   one       a ring takes one request at a time
 *   error     requests fail with EIO
 *   nothing   requests do 0 bytes
 *   toomuch   results name more bytes than were asked for
 *   foreign   results are of requests that were never made
 *   silent    no request is done; all of them are when the word has gone
 *   noring, nobuffer, nofile   rings, buffers, files are refused
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "usrbio.h"

struct request {
    void *memory;
    int fd;
    size_t offset;
    uint64_t len;
    const void *userdata;
};

struct ring {
    int entries;
    int count;
    bool submitted;
    struct request requests[];
};

static char mode_file[PATH_MAX + 16];

static bool mode(const char *word) {
    char words[200] = {0};
    FILE *file = fopen(mode_file, "r");
    if (!file) return false;
    size_t len = fread(words, 1, sizeof words - 1, file);
    fclose(file);
    words[len] = 0;
    return strstr(words, word) != NULL;
}

int hf3fs_extract_mount_point(char *mount_point, int size, const char *path) {
    char found[PATH_MAX], virt[PATH_MAX + 16];
    if (!realpath(path, found)) return -1;
    for (;;) {
        snprintf(virt, sizeof virt, "%s/3fs-virt", found);
        if (access(virt, F_OK) == 0) break;
        char *slash = strrchr(found, '/');
        if (!slash || slash == found) return -1;
        *slash = 0;
    }
    int len = (int)strlen(found) + 1;
    if (len <= size) strcpy(mount_point, found);
    snprintf(mode_file, sizeof mode_file, "%s/3fs-virt/mode", found);
    return len;
}

int hf3fs_iovcreate(struct hf3fs_iov *iov, const char *mount_point, size_t size, size_t block_size, int numa) {
    if (mode("nobuffer")) return -ENOMEM;
    iov->base = iov->iovh = malloc(size);
    memset(iov->base, 0xaa, size);
    memcpy(iov->id, "the buffer's id", 16);
    strcpy(iov->mount_point, mount_point);
    iov->size = size;
    iov->block_size = block_size;
    iov->numa = numa;
    return 0;
}

void hf3fs_iovdestroy(struct hf3fs_iov *iov) {
    free(iov->iovh);
    iov->iovh = NULL;
}

int hf3fs_iorcreate4(struct hf3fs_ior *ior, const char *mount_point, int entries, bool for_read, int io_depth,
                     int timeout, int numa, uint64_t flags) {
    if (mode("noring") || timeout < 0) return -EINVAL;
    struct ring *ring = calloc(1, sizeof *ring + (size_t)entries * sizeof ring->requests[0]);
    ring->entries = entries;
    ior->iorh = ring;
    strcpy(ior->mount_point, mount_point);
    ior->iov.numa = numa;
    ior->for_read = for_read;
    ior->io_depth = io_depth;
    ior->timeout = timeout;
    ior->flags = flags;
    return 0;
}

void hf3fs_iordestroy(struct hf3fs_ior *ior) {
    free(ior->iorh);
    ior->iorh = NULL;
}

int hf3fs_reg_fd(int fd, uint64_t flags) {
    (void)flags;
    return mode("nofile") ? EBADF : -fd;
}

void hf3fs_dereg_fd(int fd) { (void)fd; }

int hf3fs_prep_io(const struct hf3fs_ior *ior, const struct hf3fs_iov *iov, bool read, void *memory, int fd,
                  size_t offset, uint64_t len, const void *userdata) {
    struct ring *ring = ior->iorh;
    uint8_t *begin = memory;
    if (read != ior->for_read || len == 0 || begin < iov->base || begin + len > iov->base + iov->size) return -EINVAL;
    if (ring->count == (mode("one") ? 1 : ring->entries - 1)) return -EAGAIN;
    ring->requests[ring->count] = (struct request){memory, fd, offset, len, userdata};
    return ring->count++;
}

int hf3fs_submit_ios(const struct hf3fs_ior *ior) {
    ((struct ring *)ior->iorh)->submitted = true;
    return 0;
}

static int64_t done(const struct hf3fs_ior *ior, const struct request *request) {
    size_t len = request->len;
    if (mode("error")) return -EIO;
    if (mode("nothing")) return 0;
    if (mode("short") && len > 1000) len = 1000;
    ssize_t result = ior->for_read ? pread(request->fd, request->memory, len, (off_t)request->offset)
                                   : pwrite(request->fd, request->memory, len, (off_t)request->offset);
    if (result < 0) return -errno;
    return mode("toomuch") ? (int64_t)request->len + 1 : result;
}

int hf3fs_wait_for_ios(const struct hf3fs_ior *ior, struct hf3fs_cqe *results, int room, int least,
                       const struct timespec *until) {
    struct ring *ring = ior->iorh;
    if (room <= 0) return -EINVAL;
    while (!ring->submitted || ring->count < least || mode("silent")) {
        struct timespec now, pause = {0, 1000000};
        clock_gettime(CLOCK_REALTIME, &now);
        if (now.tv_sec > until->tv_sec || (now.tv_sec == until->tv_sec && now.tv_nsec >= until->tv_nsec)) return 0;
        nanosleep(&pause, NULL);
    }
    int count = 0;
    bool reverse = mode("reverse"), foreign = mode("foreign");
    for (; count < room && count < ring->count; count++) {
        const struct request *request = &ring->requests[reverse ? ring->count - 1 - count : count];
        results[count].index = count;
        results[count].result = done(ior, request);
        results[count].userdata = foreign ? (const void *)(uintptr_t)12345678 : request->userdata;
    }
    ring->count -= count;
    if (!reverse) memmove(ring->requests, ring->requests + count, (size_t)ring->count * sizeof ring->requests[0]);
    return count;
}
