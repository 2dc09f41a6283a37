// fuse_limit FILE MODE MOUNTPOINT THREADS
//
// The raw rate of /dev/fuse with no file system behind it: what any FUSE file system on this machine is measured
// against. The mount has one file "f" with the bytes of FILE (which should be in the page cache); each thread has a
// device clone of its own and answers READ on the spot. It also takes create, write, stat and unlink of other names,
// kept in memory: the limit for metadata. Modes: enum mode in fuse_limit.h.
//
// Environment: JOURNAL=PATH appends writes to PATH and answers FSYNC after one fdatasync of it (the limit of a
// write-back cache with one disk and no group commit); LOWAT=1 sets SO_RCVLOWAT in mode sockspl.
//
// Ends at umount and prints its own and the sender's CPU seconds. Modes filespl and sockspl need
// fs.pipe-max-size >= 4 MiB: a 1 MiB reply with its header needs 257 page slots, and a socket's fragments need more.
#define _GNU_SOURCE
#include "fuse_limit.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS_MAX = 64, PIPE_LEN = 4 << 20 };

struct limit limit = {.journal_fd = -1};

void die(const char *what) {
    perror(what);
    exit(1);
}

static enum mode parse_mode(const char *text) {
    static const char *const names[] = {"mem", "filecopy", "filespl", "sockcopy", "sockspl", "passthrough"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(text, names[i])) return i;
    fprintf(stderr, "unknown mode %s\n", text);
    exit(2);
}

static int mount_fuse(const char *mountpoint) {
    int fd = open("/dev/fuse", O_RDWR);
    if (fd < 0) die("/dev/fuse");
    char options[256];
    snprintf(options, sizeof options,
             "fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other,max_read=%d", fd, PAYLOAD_MAX);
    if (mount("fuse_limit", mountpoint, "fuse.fuse_limit", 0, options)) die("mount");
    return fd;
}

static void start(struct worker *worker, int fuse_fd, bool is_first, pid_t sender, uint16_t port) {
    worker->fuse_fd = fuse_fd;
    if (!is_first) {
        worker->fuse_fd = open("/dev/fuse", O_RDWR);
        uint32_t source = fuse_fd;
        if (ioctl(worker->fuse_fd, FUSE_DEV_IOC_CLONE, &source)) die("clone");
    }
    if (pipe(worker->pipe)) die("pipe");
    bool splices = limit.mode == MODE_FILESPL || limit.mode == MODE_SOCKSPL;
    if (splices && fcntl(worker->pipe[1], F_SETPIPE_SZ, PIPE_LEN) < 0) die("fs.pipe-max-size is too small");
    worker->memory = aligned_alloc(4096, PAYLOAD_MAX);
    memset(worker->memory, 7, PAYLOAD_MAX);
    if (sender) worker->socket = sender_connect(port);
    if (pthread_create(&worker->thread, NULL, serve, worker)) die("pthread_create");
}

static double seconds(struct timeval time) { return time.tv_sec + time.tv_usec / 1e6; }

static void print_cpu_seconds(pid_t sender) {
    struct rusage own;
    getrusage(RUSAGE_SELF, &own);
    fprintf(stderr, "CPU seconds in all: server user %.2f sys %.2f", seconds(own.ru_utime), seconds(own.ru_stime));
    if (sender) {
        int status;
        struct rusage its;
        kill(sender, SIGKILL);
        wait4(sender, &status, 0, &its);
        fprintf(stderr, ", sender user %.2f sys %.2f", seconds(its.ru_utime), seconds(its.ru_stime));
    }
    fprintf(stderr, "\n");
}

int main(int argc, char **argv) {
    if (argc < 5) {
        fprintf(stderr, "usage: fuse_limit FILE mem|filecopy|filespl|sockcopy|sockspl|passthrough MOUNTPOINT THREADS\n");
        return 2;
    }
    int threads = atoi(argv[4]);
    if (threads < 1 || threads > THREADS_MAX) {
        fprintf(stderr, "THREADS: 1 to %d\n", THREADS_MAX);
        return 2;
    }
    limit.mode = parse_mode(argv[2]);
    limit.data_fd = open(argv[1], O_RDONLY);
    if (limit.data_fd < 0) die(argv[1]);
    limit.data_len = lseek(limit.data_fd, 0, SEEK_END);
    limit.set_rcvlowat = getenv("LOWAT");
    const char *journal = getenv("JOURNAL");
    if (journal) {
        limit.journal_fd = open(journal, O_RDWR | O_CREAT | O_TRUNC, 0600);
        if (limit.journal_fd < 0) die(journal);
    }
    names_init();
    uint16_t port = 0;
    pid_t sender = limit.mode == MODE_SOCKCOPY || limit.mode == MODE_SOCKSPL ? sender_start(&port) : 0;
    int fuse_fd = mount_fuse(argv[3]);
    static struct worker workers[THREADS_MAX];
    for (int i = 0; i < threads; i++) start(&workers[i], fuse_fd, i == 0, sender, port);
    for (int i = 0; i < threads; i++) pthread_join(workers[i].thread, NULL);
    print_cpu_seconds(sender);
    return 0;
}
