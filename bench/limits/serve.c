// The request loop: as little as the protocol allows.
#define _GNU_SOURCE
#include "fuse_limit.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { INODE_ROOT = 1, INODE_FILE = 2 };
// Attributes and entries stay valid for the whole run: the kernel asks once.
enum { VALID_S = 1000 };

// Passthrough (Linux 6.9), which older <linux/fuse.h> do not have: two flags, an ioctl, and two fields in what was padding.
enum { LIMIT_INIT_EXT = 1 << 30, LIMIT_PASSTHROUGH2 = 1 << (37 - 32), LIMIT_FOPEN_PASSTHROUGH = 1 << 7 };
struct limit_backing_map {
    int32_t fd;
    uint32_t flags;
    uint64_t padding;
};
#define LIMIT_BACKING_OPEN _IOW(229, 1, struct limit_backing_map)
enum { MAX_STACK_DEPTH_AT = 36, BACKING_ID_AT = 12 };

static off_t journal_end;

static void reply(int fd, uint64_t unique, int error, void *body, size_t len) {
    struct fuse_out_header header = {sizeof header + len, -error, unique};
    struct iovec parts[2] = {{&header, sizeof header}, {body, len}};
    // ENOENT: the request was interrupted; ENODEV: unmounted. Neither matters here.
    ssize_t written = writev(fd, parts, len ? 2 : 1);
    (void)written;
}

// A node id made by a name carries in its lowest bit whether it is a directory: GETATTR needs no table.
static uint64_t node_id(uint64_t inode, bool is_dir) { return inode << 1 | is_dir; }

static struct fuse_attr attributes(uint64_t node) {
    bool is_dir = node == INODE_ROOT || (node > INODE_FILE && (node & 1));
    uint64_t size = node == INODE_FILE ? limit.data_len : 4096;
    return (struct fuse_attr){
        .ino = node, .mode = is_dir ? S_IFDIR | 0755 : S_IFREG | 0644, .nlink = 1,
        .size = size, .blksize = PAYLOAD_MAX, .blocks = size / 512};
}

static struct fuse_entry_out entry(uint64_t node) {
    return (struct fuse_entry_out){
        .nodeid = node, .attr_valid = VALID_S, .entry_valid = VALID_S, .attr = attributes(node)};
}

static void init(int fd, uint64_t unique) {
    struct fuse_init_out out = {
        .major = 7, .minor = 36, .max_readahead = PAYLOAD_MAX,
        .flags = FUSE_ASYNC_READ | FUSE_PARALLEL_DIROPS | FUSE_MAX_PAGES | FUSE_SPLICE_READ | FUSE_ASYNC_DIO,
        .max_background = 64, .congestion_threshold = 64,
        .max_write = PAYLOAD_MAX, .max_pages = PAYLOAD_MAX / 4096, .time_gran = 1};
    if (limit.mode == MODE_PASSTHROUGH) {
        uint32_t depth = 1;
        out.flags |= LIMIT_INIT_EXT;
        out.flags2 = LIMIT_PASSTHROUGH2;
        memcpy((char *)&out + MAX_STACK_DEPTH_AT, &depth, sizeof depth);
    }
    reply(fd, unique, 0, &out, sizeof out);
}

// The backing file's number, the same for every open: the kernel refuses two at once for one inode.
static int32_t backing_id(int fd) {
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static int32_t id;
    pthread_mutex_lock(&mutex);
    struct limit_backing_map map = {.fd = limit.data_fd};
    if (!id && (id = ioctl(fd, LIMIT_BACKING_OPEN, &map)) <= 0) die("FUSE_DEV_IOC_BACKING_OPEN");
    pthread_mutex_unlock(&mutex);
    return id;
}

static void lookup(int fd, const struct fuse_in_header *header, const char *text) {
    uint64_t node = INODE_FILE;
    if (header->nodeid != INODE_ROOT || strcmp(text, "f")) {
        struct name name = names_find(header->nodeid, text);
        if (!name.exists) return reply(fd, header->unique, ENOENT, NULL, 0);
        node = node_id(name.inode, name.is_dir);
    }
    struct fuse_entry_out out = entry(node);
    reply(fd, header->unique, 0, &out, sizeof out);
}

static void create(int fd, const struct fuse_in_header *header, const char *body) {
    bool is_dir = header->opcode == FUSE_MKDIR;
    const char *text = body + (is_dir ? sizeof(struct fuse_mkdir_in) : sizeof(struct fuse_create_in));
    struct {
        struct fuse_entry_out entry;
        struct fuse_open_out open;
    } out = {.entry = entry(node_id(names_create(header->nodeid, text, is_dir), is_dir))};
    reply(fd, header->unique, 0, &out, is_dir ? sizeof out.entry : sizeof out);
}

static void store(int fd, uint64_t unique, const struct fuse_write_in *in) {
    if (limit.journal_fd >= 0) {
        off_t at = __sync_fetch_and_add(&journal_end, in->size);
        if (pwrite(limit.journal_fd, in + 1, in->size, at) != (ssize_t)in->size) die("write to the journal");
    }
    struct fuse_write_out out = {.size = in->size};
    reply(fd, unique, 0, &out, sizeof out);
}

static void splice_all(int from, off_t *offset, int to, size_t len) {
    while (len) {
        ssize_t n = splice(from, offset, to, NULL, len, SPLICE_F_MOVE);
        if (n <= 0) die("splice into the pipe");
        len -= n;
    }
}

// Fills the worker's memory from the sender.
static void receive(const struct worker *worker, size_t len) {
    for (size_t done = 0; done < len;) {
        ssize_t n = read(worker->socket, worker->memory + done, len - done);
        if (n <= 0) die("read from the sender");
        done += n;
    }
}

// One splice of one pipe holds the header and the payload.
static void reply_by_splice(const struct worker *worker, uint64_t unique, uint64_t offset, size_t len) {
    struct fuse_out_header header = {sizeof header + len, 0, unique};
    if (write(worker->pipe[1], &header, sizeof header) != sizeof header) die("write into the pipe");
    if (limit.mode == MODE_FILESPL) {
        off_t at = offset;
        splice_all(limit.data_fd, &at, worker->pipe[1], len);
    } else {
        int low = len;
        if (limit.set_rcvlowat) setsockopt(worker->socket, SOL_SOCKET, SO_RCVLOWAT, &low, sizeof low);
        splice_all(worker->socket, NULL, worker->pipe[1], len);
    }
    ssize_t n = splice(worker->pipe[0], NULL, worker->fuse_fd, NULL, header.len, SPLICE_F_MOVE);
    if (n != (ssize_t)header.len) die("splice into /dev/fuse");
}

static void fetch(const struct worker *worker, uint64_t unique, const struct fuse_read_in *in) {
    size_t len = in->size;
    if (in->offset + len > limit.data_len) len = in->offset < limit.data_len ? limit.data_len - in->offset : 0;
    if (limit.mode == MODE_SOCKCOPY || limit.mode == MODE_SOCKSPL) {
        struct sender_request request = {in->offset, len};
        if (write(worker->socket, &request, sizeof request) != sizeof request) die("write to the sender");
    }
    switch (limit.mode) {
    case MODE_PASSTHROUGH: die("a read came although the kernel has the file");
    case MODE_MEM: break;
    case MODE_FILECOPY:
        if (pread(limit.data_fd, worker->memory, len, in->offset) != (ssize_t)len) die("pread");
        break;
    case MODE_SOCKCOPY: receive(worker, len); break;
    case MODE_FILESPL:
    case MODE_SOCKSPL: return reply_by_splice(worker, unique, in->offset, len);
    }
    reply(worker->fuse_fd, unique, 0, worker->memory, len);
}

// Returns false when the mount has ended.
static bool handle(const struct worker *worker, const struct fuse_in_header *header) {
    int fd = worker->fuse_fd;
    uint64_t unique = header->unique;
    const char *body = (const char *)(header + 1);
    switch (header->opcode) {
    case FUSE_INIT: init(fd, unique); break;
    case FUSE_LOOKUP: lookup(fd, header, body); break;
    case FUSE_CREATE:
    case FUSE_MKDIR: create(fd, header, body); break;
    case FUSE_UNLINK:
        names_remove(header->nodeid, body);
        reply(fd, unique, 0, NULL, 0);
        break;
    case FUSE_WRITE: store(fd, unique, (const void *)body); break;
    case FUSE_FSYNC:
        if (limit.journal_fd >= 0 && fdatasync(limit.journal_fd)) die("fdatasync");
        reply(fd, unique, 0, NULL, 0);
        break;
    case FUSE_GETATTR:
    case FUSE_SETATTR: {
        struct fuse_attr_out out = {.attr_valid = VALID_S, .attr = attributes(header->nodeid)};
        reply(fd, unique, 0, &out, sizeof out);
        break;
    }
    case FUSE_OPEN:
    case FUSE_OPENDIR: {
        struct fuse_open_out out = {0};
        if (limit.mode == MODE_PASSTHROUGH && header->nodeid == INODE_FILE) {
            int32_t id = backing_id(fd);
            out.open_flags = LIMIT_FOPEN_PASSTHROUGH;
            memcpy((char *)&out + BACKING_ID_AT, &id, sizeof id);
        }
        reply(fd, unique, 0, &out, sizeof out);
        break;
    }
    case FUSE_READ: fetch(worker, unique, (const void *)body); break;
    case FUSE_FLUSH:
    case FUSE_RELEASE:
    case FUSE_RELEASEDIR:
    case FUSE_ACCESS: reply(fd, unique, 0, NULL, 0); break;
    case FUSE_FORGET:
    case FUSE_BATCH_FORGET:
    case FUSE_INTERRUPT: break; // have no reply
    case FUSE_DESTROY: return false;
    default: reply(fd, unique, ENOSYS, NULL, 0); break;
    }
    return true;
}

void *serve(void *argument) {
    struct worker *worker = argument;
    size_t len = PAYLOAD_MAX + 65536; // a WRITE and its headers
    char *buffer = aligned_alloc(4096, len);
    if (!buffer) die("aligned_alloc");
    for (;;) {
        ssize_t n = read(worker->fuse_fd, buffer, len);
        if (n < 0 && (errno == EINTR || errno == ENOENT || errno == EAGAIN)) continue;
        if (n < 0 || !handle(worker, (const void *)buffer)) return NULL;
    }
}
