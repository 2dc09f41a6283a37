// What the parts of fuse_limit share.
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <linux/fuse.h>

// The largest read and write that a FUSE connection is given here: 256 pages, as the kernel allows without privilege.
enum { PAYLOAD_MAX = 1 << 20 };

// How READ of the file "f" is answered.
enum mode {
    MODE_MEM,      // from memory, writev
    MODE_FILECOPY, // pread of the file, writev
    MODE_FILESPL,  // splice file -> pipe -> /dev/fuse
    MODE_SOCKCOPY, // a sender process sendfiles over loopback TCP; recv, writev
    MODE_SOCKSPL,  // the same; splice socket -> pipe -> /dev/fuse
    MODE_PASSTHROUGH, // not at all: the kernel reads the file by itself
};

// Settings, set before the first thread starts.
struct limit {
    enum mode mode;
    int data_fd;      // the file behind "f", in the page cache
    uint64_t data_len;
    int journal_fd;   // -1: FSYNC is answered at once
    bool set_rcvlowat; // MODE_SOCKSPL: wait for whole replies (LOWAT in the environment)
};
extern struct limit limit;

// One thread of the server: a device clone, and for some modes a pipe and a connection to the sender.
struct worker {
    int fuse_fd;
    int socket;
    int pipe[2];
    char *memory; // PAYLOAD_MAX bytes
    pthread_t thread;
};

// Answers requests until the mount ends. Takes a struct worker.
void *serve(void *worker);

// names.c: the names that were created, with a lock of their own.
struct name {
    uint64_t parent, inode;
    bool is_dir, exists;
    char text[48];
};
void names_init(void);
// Makes a name (again) and returns its inode.
uint64_t names_create(uint64_t parent, const char *text, bool is_dir);
// The name as it is now; `exists` is false for one that was never made or was removed.
struct name names_find(uint64_t parent, const char *text);
void names_remove(uint64_t parent, const char *text);

// sender.c: the other end of MODE_SOCK*. Returns the pid of the process that accepts connections on *port.
pid_t sender_start(uint16_t *port);
int sender_connect(uint16_t port);
// A request to it: these two numbers; the answer: that many bytes of the file.
struct sender_request {
    uint64_t offset, len;
};

// Prints what failed and ends the process: a limit that was measured around an error is no limit.
void die(const char *what) __attribute__((noreturn));
