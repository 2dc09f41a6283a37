// tcp_limit FILE SENDER RECEIVER TOTAL_MIB CHUNK_KIB [SO_RCVLOWAT]
//
// The raw rate of one loopback TCP connection, with no protocol on it.
// SENDER:   sendfile    of FILE, which should be in the page cache
//           preadwrite  pread FILE, write
//           write       the same buffer again and again: no file at all
// RECEIVER: read        into memory
//           splice      into a pipe and on to /dev/null
//           trunc       recv(MSG_TRUNC): the bytes are dropped in the kernel
// Prints GB/s (1e9) and the CPU seconds per GiB of each side.
#define _GNU_SOURCE
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PIPE_LEN = 1 << 20 };

static void die(const char *what) {
    perror(what);
    exit(1);
}

static double seconds(struct timeval time) { return time.tv_sec + time.tv_usec / 1e6; }

static double now(void) {
    struct timeval time;
    gettimeofday(&time, NULL);
    return seconds(time);
}

static void send_all(int socket, int file, const char *how, long total, size_t chunk) {
    off_t len = lseek(file, 0, SEEK_END), offset = 0;
    char *buffer = malloc(chunk);
    if (pread(file, buffer, chunk, 0) != (ssize_t)chunk) die("pread");
    for (long sent = 0; sent < total;) {
        if (offset + (off_t)chunk > len) offset = 0;
        ssize_t n;
        if (!strcmp(how, "sendfile")) {
            n = sendfile(socket, file, &offset, chunk);
        } else if (!strcmp(how, "preadwrite")) {
            n = pread(file, buffer, chunk, offset);
            if (n <= 0) die("pread");
            offset += n;
            n = write(socket, buffer, chunk);
        } else {
            n = write(socket, buffer, chunk);
        }
        if (n <= 0) die("send");
        sent += n;
    }
}

static ssize_t splice_to_null(int socket, const int pipe_fds[2], int null, size_t chunk) {
    ssize_t n = splice(socket, NULL, pipe_fds[1], NULL, chunk, SPLICE_F_MOVE | SPLICE_F_MORE);
    for (ssize_t left = n; left > 0;) {
        ssize_t written = splice(pipe_fds[0], NULL, null, NULL, left, SPLICE_F_MOVE);
        if (written <= 0) die("splice to /dev/null");
        left -= written;
    }
    return n;
}

// Returns the number of calls it took.
static long receive_all(int socket, const char *how, long total, size_t chunk) {
    int pipe_fds[2], null = open("/dev/null", O_WRONLY);
    if (pipe(pipe_fds) || fcntl(pipe_fds[1], F_SETPIPE_SZ, PIPE_LEN) < 0) die("pipe");
    char *buffer = malloc(chunk);
    long calls = 0;
    for (long got = 0; got < total; calls++) {
        ssize_t n;
        if (!strcmp(how, "splice")) n = splice_to_null(socket, pipe_fds, null, chunk);
        else if (!strcmp(how, "trunc")) n = recv(socket, buffer, chunk, MSG_TRUNC);
        else n = read(socket, buffer, chunk);
        if (n <= 0) die("receive");
        got += n;
    }
    return calls;
}

int main(int argc, char **argv) {
    if (argc < 6) {
        fprintf(stderr, "usage: tcp_limit FILE sendfile|preadwrite|write read|splice|trunc TOTAL_MIB CHUNK_KIB [RCVLOWAT]\n");
        return 2;
    }
    const char *sender = argv[2], *receiver = argv[3];
    long total = atol(argv[4]) << 20;
    size_t chunk = atol(argv[5]) << 10;
    double gib = total / 1073741824.0;
    int file = open(argv[1], O_RDONLY);
    if (file < 0) die(argv[1]);
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t address_len = sizeof address;
    if (bind(listener, (void *)&address, address_len) || listen(listener, 1)) die("listen");
    getsockname(listener, (void *)&address, &address_len);
    struct rusage usage;
    if (fork() == 0) {
        int connection = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(connection, (void *)&address, sizeof address)) die("connect");
        send_all(connection, file, sender, total, chunk);
        getrusage(RUSAGE_SELF, &usage);
        printf("  sender cpu s/GiB: user %.3f sys %.3f\n", seconds(usage.ru_utime) / gib, seconds(usage.ru_stime) / gib);
        return 0;
    }
    int connection = accept(listener, NULL, NULL);
    if (argc > 6) {
        int low = atoi(argv[6]);
        setsockopt(connection, SOL_SOCKET, SO_RCVLOWAT, &low, sizeof low);
    }
    double start = now();
    long calls = receive_all(connection, receiver, total, chunk);
    double took = now() - start;
    wait(NULL);
    getrusage(RUSAGE_SELF, &usage);
    printf("%s->%s: %.2f GB/s, recv calls %ld; receiver cpu s/GiB user %.3f sys %.3f\n", sender, receiver,
           total / took / 1e9, calls, seconds(usage.ru_utime) / gib, seconds(usage.ru_stime) / gib);
    return 0;
}
