// slow_link COUNTERS PORT:ROUND_TRIP_US:BYTES_PER_S...
//
// A long or narrow link to this host, in user space. It makes a network namespace that has nothing but a loopback, listens there at each
// 127.0.0.1:PORT, and hands what it is sent on to the same port outside: a program that is started in that namespace (nsenter --net) meets
// the same addresses, further away. Half of ROUND_TRIP_US passes each way; a new connection takes one round trip before its first byte.
// BYTES_PER_S, 0 for no limit, holds for each way and for all connections of the port together.
//
// Nothing sleeps for a piece of data: each is queued with the time at which it is due, so that any number is under way at once. What a
// port has passed is in the file COUNTERS, four numbers of 64 bits a port: bytes to the outside, bytes from there, connections, and the
// most bytes that were under way. Prints "ready" once it listens; ends with its parent.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { LINKS_MAX = 256, CONNECTIONS_MAX = 4096, EVENTS = 256, CHUNK_LEN = 128 << 10 };
// That a connection has taken from it in one turn; on a narrow link, one.
enum { PIECES_MAX = 8 };
// Of one way of a connection: more than 30 ms at 1 GB/s.
enum { UNDER_WAY_MAX = 64 << 20 };
// Times of arrival are rounded to this part of the way's delay.
enum { GRAINS = 64 };
// What a narrow link has waiting in front of it: as little as keeps it busy between two turns of this loop.
static const uint64_t WAITING_NS_MAX = 2000000;
// A link is not late: while its thread waits for a processor, what stood in line would have gone on. For so long at most.
static const uint64_t LATE_NS_MAX = 50000000;

struct counters {
    uint64_t sent, received, connections, under_way_max;
};

// A port, and when each way of it is free again.
struct link {
    int listener;
    uint16_t port;
    uint64_t round_trip_ns, bytes_per_s, free_at_ns[2];
    bool in_line[2], was_in_line[2]; // something found no room in this round, and in the one before
    struct counters *counters;
};

struct chunk {
    struct chunk *next;
    uint64_t due_ns;
    size_t len, done;
    char bytes[CHUNK_LEN];
};

// One way of a connection. `readable` and `writable` are what epoll said last (it is edge-triggered).
struct way {
    struct chunk *first, **last;
    size_t under_way;
    bool readable, ended, shut;
};

struct connection {
    struct link *link;
    int fds[2]; // inside, outside; way i reads from fds[i]
    struct way ways[2];
    bool writable[2], failed;
    uint64_t open_ns; // nothing arrives before
};

static struct link links[LINKS_MAX];
static struct chunk *spare; // pieces to be used again: their pages are there
static struct connection *connections[CONNECTIONS_MAX];
static int link_count, connection_count, epoll, outside;

static void die(const char *what) {
    perror(what);
    exit(1);
}

static uint64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000ull + time.tv_nsec;
}

static uint64_t later(uint64_t a, uint64_t b) { return a > b ? a : b; }
static uint64_t sooner(uint64_t a, uint64_t b) { return a < b ? a : b; }

static struct chunk *new_chunk(void) {
    struct chunk *chunk = spare;
    if (chunk) spare = chunk->next;
    else if (!(chunk = malloc(sizeof *chunk))) die("malloc");
    return chunk;
}

static void free_chunk(struct chunk *chunk) {
    chunk->next = spare;
    spare = chunk;
}

// The low bit of an event's datum says which end of the connection it is; a listener has a datum below LINKS_MAX.
static void watch(int fd, uint32_t events, uint64_t datum) {
    struct epoll_event event = {.events = events, .data.u64 = datum};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event)) die("epoll_ctl");
}

static void add(struct link *link) {
    int inside = accept4(link->listener, NULL, NULL, SOCK_NONBLOCK);
    if (inside < 0) return;
    int beyond = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), one = 1;
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(link->port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    bool refused = beyond < 0 || connection_count == CONNECTIONS_MAX ||
                   (connect(beyond, (void *)&address, sizeof address) && errno != EINPROGRESS);
    if (refused) {
        close(inside);
        if (beyond >= 0) close(beyond);
        return;
    }
    struct connection *connection = calloc(1, sizeof *connection);
    if (!connection) die("calloc");
    *connection = (struct connection){.link = link, .fds = {inside, beyond}};
    connection->open_ns = now_ns() + link->round_trip_ns;
    link->counters->connections++;
    for (int i = 0; i < 2; i++) {
        connection->ways[i].last = &connection->ways[i].first;
        setsockopt(connection->fds[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        watch(connection->fds[i], EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, (uint64_t)connection | i);
    }
    connections[connection_count++] = connection;
}

static void end(struct connection *connection) {
    for (int i = 0; i < 2; i++) {
        close(connection->fds[i]);
        for (struct chunk *chunk = connection->ways[i].first, *next; chunk; chunk = next) {
            next = chunk->next;
            free_chunk(chunk);
        }
    }
    free(connection);
}

// Whether this way may take more now; if not, when.
static bool has_room(struct connection *connection, int i, uint64_t now, uint64_t *wake) {
    struct link *link = connection->link;
    if (connection->ways[i].under_way >= UNDER_WAY_MAX) return false; // a write makes room, and wakes
    if (!link->bytes_per_s || link->free_at_ns[i] <= now + WAITING_NS_MAX) return true;
    link->in_line[i] = true;
    *wake = sooner(*wake, link->free_at_ns[i] - WAITING_NS_MAX);
    return false;
}

static void count(struct link *link, int i, size_t len, size_t under_way) {
    *(i ? &link->counters->received : &link->counters->sent) += len;
    link->counters->under_way_max = later(link->counters->under_way_max, under_way);
}

// Takes one piece, if one has arrived.
static void take(struct connection *connection, int i, uint64_t now) {
    struct way *way = &connection->ways[i];
    struct link *link = connection->link;
    struct chunk *chunk = new_chunk();
    ssize_t n = read(connection->fds[i], chunk->bytes, sizeof chunk->bytes);
    if (n <= 0) {
        free_chunk(chunk);
        way->readable = false;
        if (n == 0) way->ended = true;
        else if (errno != EAGAIN) connection->failed = true;
        return;
    }
    uint64_t through = link->bytes_per_s ? n * 1000000000ull / link->bytes_per_s : 0;
    uint64_t idle_since = link->was_in_line[i] ? now - LATE_NS_MAX : now;
    link->free_at_ns[i] = later(link->free_at_ns[i], idle_since) + through;
    chunk->next = NULL;
    chunk->due_ns = later(link->free_at_ns[i], connection->open_ns) + link->round_trip_ns / 2;
    // What is due at nearly the same time shares a turn.
    uint64_t grain = link->round_trip_ns / 2 / GRAINS;
    if (grain) chunk->due_ns += grain / 2 - (chunk->due_ns + grain / 2) % grain;
    chunk->len = n;
    chunk->done = 0;
    *way->last = chunk;
    way->last = &chunk->next;
    way->under_way += n;
    count(link, i, n, way->under_way);
}

// Hands on what is due.
static void give(struct connection *connection, int i, uint64_t now, uint64_t *wake) {
    struct way *way = &connection->ways[i];
    while (way->first && connection->writable[!i]) {
        struct chunk *chunk = way->first;
        if (chunk->due_ns > now) {
            *wake = sooner(*wake, chunk->due_ns);
            return;
        }
        ssize_t n = send(connection->fds[!i], chunk->bytes + chunk->done, chunk->len - chunk->done, MSG_NOSIGNAL);
        if (n < 0) {
            connection->writable[!i] = false;
            if (errno != EAGAIN && errno != ENOTCONN) connection->failed = true;
            return;
        }
        chunk->done += n;
        way->under_way -= n;
        if (chunk->done < chunk->len) continue;
        way->first = chunk->next;
        if (!way->first) way->last = &way->first;
        free_chunk(chunk);
    }
    if (way->ended && !way->first && !way->shut) {
        shutdown(connection->fds[!i], SHUT_WR);
        way->shut = true;
    }
}

// Returns false when the connection is over.
static bool turn(struct connection *connection, uint64_t now, uint64_t *wake) {
    for (int i = 0; i < 2; i++) {
        struct way *way = &connection->ways[i];
        int pieces = connection->link->bytes_per_s ? 1 : PIECES_MAX;
        do {
            if (way->readable && has_room(connection, i, now, wake)) take(connection, i, now);
            give(connection, i, now, wake);
        } while (--pieces && way->readable);
        if (way->readable && has_room(connection, i, now, wake)) *wake = now;
    }
    return !connection->failed && !(connection->ways[0].shut && connection->ways[1].shut);
}

static void *run(void *unused) {
    if (setns(outside, CLONE_NEWNET)) die("setns");
    struct epoll_event events[EVENTS];
    uint64_t wake = UINT64_MAX;
    for (unsigned rounds = 0;; rounds++) {
        uint64_t now = now_ns(), left = wake > now ? wake - now : 0;
        struct timespec wait = {.tv_sec = left / 1000000000, .tv_nsec = left % 1000000000};
        int n = epoll_pwait2(epoll, events, EVENTS, wake == UINT64_MAX ? NULL : &wait, NULL);
        if (n < 0 && errno != EINTR) die("epoll_pwait2");
        for (int e = 0; e < n; e++) {
            uint64_t datum = events[e].data.u64;
            if (datum < LINKS_MAX) {
                add(&links[datum]);
                continue;
            }
            struct connection *connection = (void *)(datum & ~1ull);
            if (events[e].events & ~EPOLLOUT) connection->ways[datum & 1].readable = true;
            if (events[e].events & EPOLLOUT) connection->writable[datum & 1] = true;
        }
        now = now_ns();
        wake = UINT64_MAX;
        for (int l = 0; l < link_count; l++) {
            memcpy(links[l].was_in_line, links[l].in_line, sizeof links[l].in_line);
            memset(links[l].in_line, 0, sizeof links[l].in_line);
        }
        // Each round begins with another connection.
        for (int i = 0, all = connection_count; i < all; i++) {
            struct connection *connection = connections[(i + rounds) % all];
            if (!turn(connection, now, &wake)) connection->failed = true;
        }
        for (int i = connection_count - 1; i >= 0; i--) {
            if (!connections[i]->failed) continue;
            end(connections[i]);
            connections[i] = connections[--connection_count];
        }
    }
    return unused;
}

static void loopback_up(void) {
    struct ifreq request = {.ifr_name = "lo"};
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    if (fd < 0 || ioctl(fd, SIOCGIFFLAGS, &request)) die("lo");
    request.ifr_flags |= IFF_UP;
    if (ioctl(fd, SIOCSIFFLAGS, &request)) die("lo up");
    close(fd);
}

static void listen_at(struct link *link, int number) {
    int one = 1;
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(link->port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    link->listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    setsockopt(link->listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(link->listener, (void *)&address, sizeof address) || listen(link->listener, 1024)) die("listen");
    watch(link->listener, EPOLLIN, number);
}

int main(int argc, char **argv) {
    link_count = argc - 2;
    if (link_count < 1 || link_count > LINKS_MAX) {
        fprintf(stderr, "usage: slow_link COUNTERS PORT:ROUND_TRIP_US:BYTES_PER_S...\n");
        return 2;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    size_t len = link_count * sizeof(struct counters);
    int file = open(argv[1], O_RDWR | O_CREAT | O_TRUNC, 0644);
    if (file < 0 || ftruncate(file, len)) die(argv[1]);
    struct counters *counters = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (counters == MAP_FAILED) die("mmap");
    outside = open("/proc/self/ns/net", O_RDONLY);
    epoll = epoll_create1(0);
    if (outside < 0 || unshare(CLONE_NEWNET)) die("a network namespace");
    loopback_up();
    for (int i = 0; i < link_count; i++) {
        unsigned long long port, round_trip_us, bytes_per_s;
        if (sscanf(argv[i + 2], "%llu:%llu:%llu", &port, &round_trip_us, &bytes_per_s) != 3) die(argv[i + 2]);
        links[i] = (struct link){.port = port, .round_trip_ns = round_trip_us * 1000, .bytes_per_s = bytes_per_s,
                                 .counters = &counters[i]};
        listen_at(&links[i], i);
    }
    // This thread stays inside: its namespace is what others enter.
    pthread_t thread;
    if (pthread_create(&thread, NULL, run, NULL)) die("pthread_create");
    printf("ready\n");
    fflush(stdout);
    pthread_join(thread, NULL);
    return 1;
}
