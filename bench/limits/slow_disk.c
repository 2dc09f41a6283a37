// slow_disk FILE MOUNTPOINT SYNC_US
//
// No limit but a disk: a FUSE mount with one file "disk", whose bytes are those of FILE, to be put under a loop device. Each sync of it
// takes SYNC_US, and that is all it does: the bytes are in the page cache of FILE. What is measured on a file system over it is how
// often it waits for its disk, which no disk of this machine tells apart from its own noise.
//
// Prints "ready" once it is mounted; ends at umount.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <linux/fuse.h>

// As many syncs and writes as are under way at once.
enum { THREADS = 8, PAYLOAD_MAX = 1 << 20, INODE_DISK = 2, VALID_S = 1000 };

static int data_fd, fuse_fd;
static struct timespec sync_time;

static void die(const char *what) {
    perror(what);
    exit(1);
}

static void reply(int fd, uint64_t unique, int error, void *body, size_t len) {
    struct fuse_out_header header = {sizeof header + len, -error, unique};
    struct iovec parts[2] = {{&header, sizeof header}, {body, len}};
    ssize_t written = writev(fd, parts, len ? 2 : 1);
    (void)written; // interrupted or unmounted
}

static struct fuse_attr attributes(uint64_t node) {
    struct stat stat;
    if (fstat(data_fd, &stat)) die("fstat");
    bool is_disk = node == INODE_DISK;
    return (struct fuse_attr){
        .ino = node, .mode = is_disk ? S_IFREG | 0600 : S_IFDIR | 0700, .nlink = 1, .size = is_disk ? stat.st_size : 4096, .blksize = 4096};
}

static void init(int fd, uint64_t unique) {
    struct fuse_init_out out = {
        .major = 7, .minor = 36, .max_readahead = PAYLOAD_MAX, .flags = FUSE_ASYNC_READ | FUSE_MAX_PAGES | FUSE_ASYNC_DIO,
        .max_background = 64, .congestion_threshold = 64, .max_write = PAYLOAD_MAX, .max_pages = PAYLOAD_MAX / 4096, .time_gran = 1};
    reply(fd, unique, 0, &out, sizeof out);
}

static void read_disk(int fd, uint64_t unique, const struct fuse_read_in *in, char *memory) {
    ssize_t n = pread(data_fd, memory, in->size, in->offset);
    if (n < 0) die("pread");
    reply(fd, unique, 0, memory, n);
}

static void write_disk(int fd, uint64_t unique, const struct fuse_write_in *in) {
    if (pwrite(data_fd, in + 1, in->size, in->offset) != (ssize_t)in->size) die("pwrite");
    struct fuse_write_out out = {.size = in->size};
    reply(fd, unique, 0, &out, sizeof out);
}

// Returns false when the mount has ended.
static bool handle(int fd, const struct fuse_in_header *header, char *memory) {
    uint64_t unique = header->unique;
    const void *body = header + 1;
    switch (header->opcode) {
    case FUSE_INIT: init(fd, unique); break;
    case FUSE_LOOKUP: {
        if (strcmp(body, "disk")) return reply(fd, unique, ENOENT, NULL, 0), true;
        struct fuse_entry_out out = {.nodeid = INODE_DISK, .attr_valid = VALID_S, .entry_valid = VALID_S, .attr = attributes(INODE_DISK)};
        reply(fd, unique, 0, &out, sizeof out);
        break;
    }
    case FUSE_GETATTR:
    case FUSE_SETATTR: {
        struct fuse_attr_out out = {.attr_valid = VALID_S, .attr = attributes(header->nodeid)};
        reply(fd, unique, 0, &out, sizeof out);
        break;
    }
    case FUSE_OPEN:
    case FUSE_OPENDIR: {
        struct fuse_open_out out = {.open_flags = header->nodeid == INODE_DISK ? FOPEN_DIRECT_IO : 0};
        reply(fd, unique, 0, &out, sizeof out);
        break;
    }
    case FUSE_READ: read_disk(fd, unique, body, memory); break;
    case FUSE_WRITE: write_disk(fd, unique, body); break;
    case FUSE_FSYNC:
        nanosleep(&sync_time, NULL);
        reply(fd, unique, 0, NULL, 0);
        break;
    case FUSE_FLUSH:
    case FUSE_RELEASE:
    case FUSE_RELEASEDIR: reply(fd, unique, 0, NULL, 0); break;
    case FUSE_FORGET:
    case FUSE_BATCH_FORGET:
    case FUSE_INTERRUPT: break; // have no reply
    case FUSE_DESTROY: return false;
    default: reply(fd, unique, ENOSYS, NULL, 0); break;
    }
    return true;
}

static void *serve(void *is_first) {
    int fd = fuse_fd;
    if (!is_first) {
        fd = open("/dev/fuse", O_RDWR);
        uint32_t source = fuse_fd;
        if (ioctl(fd, FUSE_DEV_IOC_CLONE, &source)) die("clone");
    }
    size_t len = PAYLOAD_MAX + 65536; // a WRITE and its headers
    char *buffer = aligned_alloc(4096, len), *memory = aligned_alloc(4096, PAYLOAD_MAX);
    if (!buffer || !memory) die("aligned_alloc");
    for (;;) {
        ssize_t n = read(fd, buffer, len);
        if (n < 0 && (errno == EINTR || errno == ENOENT || errno == EAGAIN)) continue;
        if (n < 0 || !handle(fd, (const void *)buffer, memory)) return NULL;
    }
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: slow_disk FILE MOUNTPOINT SYNC_US\n");
        return 2;
    }
    data_fd = open(argv[1], O_RDWR);
    if (data_fd < 0) die(argv[1]);
    long sync_us = atol(argv[3]);
    sync_time = (struct timespec){sync_us / 1000000, sync_us % 1000000 * 1000};
    fuse_fd = open("/dev/fuse", O_RDWR);
    if (fuse_fd < 0) die("/dev/fuse");
    char options[128];
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0,max_read=%d", fuse_fd, PAYLOAD_MAX);
    if (mount("slow_disk", argv[2], "fuse.slow_disk", 0, options)) die("mount");
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, serve, i == 0 ? &fuse_fd : NULL)) die("pthread_create");
    printf("ready\n");
    fflush(stdout);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    return 0;
}
