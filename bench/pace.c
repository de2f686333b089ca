/* PUTs of 256 bytes over kept connections; every answer is checked; prints counts and latencies as JSON.
 *
 * Usage: pace PORT TARGETS CONNECTIONS STATUS NEEDLE rate R SECONDS     open loop
 *        pace PORT TARGETS CONNECTIONS STATUS NEEDLE flat SECONDS       as many as go
 *        pace PORT TARGETS CONNECTIONS STATUS NEEDLE once               each target once
 *
 * TARGETS is a file of lines "PATH TOKEN" or "PATH TOKEN IDEMPOTENCY-KEY", taken in order, over and over. An answer must have STATUS and hold
 * NEEDLE. At a rate, a request's latency counts from the moment at which it was due, however late it was sent, so
 * a peer that stalls cannot hide the requests that had to wait meanwhile. They are due one by one, evenly spaced:
 * h2load --rps sends a whole tick's at once, so its latencies hold the queue that it makes itself. In C, since half
 * of what a proxy can carry is more than Python can send from the core that it shares with the store.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define BODY 256
#define PATIENCE_NS (5 * 1000000000ull)
#define LINE_MAX_BYTES 2048
#define ANSWER_MAX 8192
#define CONNECTIONS_MAX 4096

struct connection {
    int fd;
    uint64_t due_ns;
    size_t have;
    char answer[ANSWER_MAX];
};

static struct connection *connections;
static int connections_count, *idle, idle_count;
static const char *targets, *targets_end, *next_target;
static const char *status, *needle;
static uint64_t *latencies, answered, room;

static void fail(const char *why, const char *what, size_t length) {
    fprintf(stderr, "%s: %.*s\n", why, (int)(length > 300 ? 300 : length), what);
    exit(1);
}

static void must(int ok, const char *why) {
    if (!ok) fail(why, strerror(errno), 300);
}

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ull + now.tv_nsec;
}

static void open_targets(const char *path) {
    struct stat about;
    int fd = open(path, O_RDONLY);
    must(fd >= 0 && fstat(fd, &about) == 0 && about.st_size > 0, "targets");
    targets = mmap(NULL, about.st_size, PROT_READ, MAP_PRIVATE | MAP_POPULATE, fd, 0);
    must(targets != MAP_FAILED, "targets");
    targets_end = targets + about.st_size;
    next_target = targets;
    if (targets_end[-1] != '\n') fail("targets", "the last line has no end", 300);
}

static int connect_to(int port) {
    int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    must(fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof to) == 0, "connect");
    must(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0, "TCP_NODELAY");
    must(fcntl(fd, F_SETFL, O_NONBLOCK) == 0, "O_NONBLOCK");
    return fd;
}

/* The next target's request. */
static size_t format_request(char *into) {
    static const char middle[] = " HTTP/1.1\r\nHost: 127.0.0.1\r\nFence-Token: ";
    static const char before_key[] = "\r\nIdempotency-Key: ";
    static const char end[] = "\r\nContent-Length: 256\r\n\r\n";
    const char *line = next_target, *newline = memchr(line, '\n', targets_end - line);
    const char *space = memchr(line, ' ', newline - line);
    if (!space || newline - line > LINE_MAX_BYTES) fail("not a target", line, newline - line);
    char *at = mempcpy(into, "PUT ", 4);
    at = mempcpy(at, line, space - line);
    at = mempcpy(at, middle, sizeof middle - 1);
    const char *key = memchr(space + 1, ' ', newline - space - 1), *token_end = key ? key : newline;
    at = mempcpy(at, space + 1, token_end - space - 1);
    if (key) {
        at = mempcpy(at, before_key, sizeof before_key - 1);
        at = mempcpy(at, key + 1, newline - key - 1);
    }
    at = mempcpy(at, end, sizeof end - 1);
    at = (char *)memset(at, 'x', BODY) + BODY;
    next_target = newline + 1 == targets_end ? targets : newline + 1;
    return at - into;
}

static void send_next(struct connection *to, uint64_t due_ns) {
    char request[LINE_MAX_BYTES + 512];
    size_t length = format_request(request);
    to->due_ns = due_ns;
    if (send(to->fd, request, length, MSG_NOSIGNAL) != (ssize_t)length) fail("send", strerror(errno), 300);
}

/* Bytes of the whole answer, 0 while its head is not whole. */
static size_t whole(struct connection *from) {
    char *end = memmem(from->answer, from->have, "\r\n\r\n", 4);
    if (!end) return 0;
    *end = 0; /* for the search of a line */
    char *line = strcasestr(from->answer, "\r\ncontent-length:");
    *end = '\r';
    if (!line) fail("no length in", from->answer, from->have);
    return end + 4 - from->answer + strtoul(line + 17, NULL, 10);
}

/* Whether the answer is there, whole and right. */
static int receive(struct connection *from) {
    ssize_t got = recv(from->fd, from->answer + from->have, ANSWER_MAX - from->have, 0);
    if (got < 0 && errno == EAGAIN) return 0;
    if (got <= 0) fail("connection closed after", from->answer, from->have);
    from->have += got;
    size_t wanted = whole(from);
    if (wanted == 0 || from->have < wanted) {
        if (from->have == ANSWER_MAX || wanted > ANSWER_MAX) fail("too long an answer", from->answer, from->have);
        return 0;
    }
    if (from->have > wanted || strncmp(from->answer, "HTTP/1.1 ", 9) || strncmp(from->answer + 9, status, 3)
        || !memmem(from->answer, from->have, needle, strlen(needle)))
        fail("wrong answer", from->answer, from->have);
    from->have = 0;
    return 1;
}

static void note(uint64_t latency) {
    if (answered == room) {
        room = room ? room * 2 : 1 << 16;
        latencies = realloc(latencies, room * sizeof *latencies);
        must(latencies != NULL, "memory");
    }
    latencies[answered++] = latency;
}

static int ticks_from(uint64_t first_ns, uint64_t period_ns) {
    int fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    struct itimerspec when = {
        .it_interval = {period_ns / 1000000000, period_ns % 1000000000},
        .it_value = {first_ns / 1000000000, first_ns % 1000000000},
    };
    must(fd >= 0 && timerfd_settime(fd, TFD_TIMER_ABSTIME, &when, NULL) == 0, "timerfd");
    return fd;
}

/* Requests that go out in all; with a rate of 0, each as soon as a connection is free, until `total` or `until_ns`. */
static void drive(double rate, uint64_t total, uint64_t start_ns, uint64_t until_ns) {
    uint64_t ticked = 0, sent = 0, period_ns = rate > 0 ? (uint64_t)(1e9 / rate) : 0;
    int poll = epoll_create1(0), ticks = -1;
    must(poll >= 0, "epoll");
    if (rate > 0) {
        ticks = ticks_from(start_ns, period_ns);
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = CONNECTIONS_MAX};
        must(epoll_ctl(poll, EPOLL_CTL_ADD, ticks, &event) == 0, "epoll");
    }
    for (int i = 0; i < connections_count; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = i};
        must(epoll_ctl(poll, EPOLL_CTL_ADD, connections[i].fd, &event) == 0, "epoll");
    }
    for (;;) {
        uint64_t now = now_ns();
        if (rate == 0) ticked = now < until_ns ? total : sent;
        while (sent < ticked && idle_count > 0) {
            send_next(&connections[idle[--idle_count]], rate > 0 ? start_ns + sent * period_ns : now_ns());
            sent++;
        }
        if (answered == total || (rate == 0 && now >= until_ns && answered == sent)) return;
        if (now > until_ns && now - until_ns > PATIENCE_NS) fail("requests not answered in time", status, 3);
        struct epoll_event events[256];
        int count = epoll_wait(poll, events, 256, 1000);
        must(count >= 0 || errno == EINTR, "epoll");
        for (int i = 0; i < count; i++) {
            if (events[i].data.u32 == CONNECTIONS_MAX) {
                uint64_t more;
                if (read(ticks, &more, sizeof more) == sizeof more) ticked = ticked + more < total ? ticked + more : total;
            } else if (receive(&connections[events[i].data.u32])) {
                note(now_ns() - connections[events[i].data.u32].due_ns);
                idle[idle_count++] = events[i].data.u32;
            }
        }
    }
}

static int by_size(const void *one, const void *two) {
    uint64_t a = *(const uint64_t *)one, b = *(const uint64_t *)two;
    return (a > b) - (a < b);
}

static double share_us(double share) {
    return latencies[(uint64_t)((answered - 1) * share)] / 1000.0;
}

int main(int count, char **arguments) {
    if (count < 7) fail("usage", "see the head of pace.c", 300);
    const char *mode = arguments[6];
    int port = atoi(arguments[1]);
    open_targets(arguments[2]);
    connections_count = atoi(arguments[3]);
    status = arguments[4], needle = arguments[5];
    if (connections_count < 1 || connections_count >= CONNECTIONS_MAX) fail("connections", arguments[3], 300);
    connections = calloc(connections_count, sizeof *connections);
    idle = calloc(connections_count, sizeof *idle);
    for (int i = 0; i < connections_count; i++) connections[idle[idle_count++] = i].fd = connect_to(port);

    double rate = 0, seconds = 0;
    uint64_t total = UINT64_MAX, start_ns = now_ns(), until_ns = UINT64_MAX;
    if (!strcmp(mode, "rate") && count == 9) {
        rate = atof(arguments[7]), seconds = atof(arguments[8]);
        total = rate * seconds;
        start_ns += 10000000;
    } else if (!strcmp(mode, "flat") && count == 8) {
        seconds = atof(arguments[7]);
    } else if (!strcmp(mode, "once") && count == 7) {
        total = 0;
        for (const char *at = targets; at < targets_end; at++) total += *at == '\n';
    } else {
        fail("usage", "see the head of pace.c", 300);
    }
    if (seconds > 0) until_ns = start_ns + (uint64_t)(seconds * 1e9);
    drive(rate, total, start_ns, until_ns);
    double took = (now_ns() - start_ns) / 1e9;
    if (answered == 0) fail("no request was answered", status, 3);
    qsort(latencies, answered, sizeof *latencies, by_size);
    printf("{\"requests\": %lu, \"seconds\": %.6f, \"p50_us\": %.1f, \"p90_us\": %.1f, \"p99_us\": %.1f, "
           "\"p999_us\": %.1f, \"max_us\": %.1f}\n",
           answered, took, share_us(0.5), share_us(0.9), share_us(0.99), share_us(0.999), share_us(1));
    return 0;
}
