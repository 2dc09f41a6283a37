// A process of its own that sends ranges of the file over loopback TCP with sendfile: one thread per connection.
#include "fuse_limit.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <unistd.h>

static void no_delay(int socket) {
    int one = 1;
    setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

static void *send_ranges(void *argument) {
    int socket = (int)(intptr_t)argument;
    no_delay(socket);
    for (;;) {
        struct sender_request request;
        char *at = (char *)&request;
        for (size_t left = sizeof request; left;) {
            ssize_t n = read(socket, at, left);
            if (n <= 0) return NULL;
            at += n;
            left -= n;
        }
        off_t offset = request.offset;
        for (size_t left = request.len; left;) {
            ssize_t n = sendfile(socket, limit.data_fd, &offset, left);
            if (n <= 0) return NULL;
            left -= n;
        }
    }
}

pid_t sender_start(uint16_t *port) {
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    if (bind(listener, (void *)&address, len) || listen(listener, 64)) die("listen");
    getsockname(listener, (void *)&address, &len);
    *port = ntohs(address.sin_port);
    pid_t pid = fork();
    if (pid < 0) die("fork");
    if (pid) {
        close(listener);
        return pid;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) {
        int connection = accept(listener, NULL, NULL);
        pthread_t thread;
        pthread_create(&thread, NULL, send_ranges, (void *)(intptr_t)connection);
    }
}

int sender_connect(uint16_t port) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (connect(fd, (void *)&address, sizeof address)) die("connect");
    no_delay(fd);
    return fd;
}
