/* A closed-loop HTTP/1.1 load generator: one thread, epoll, N connections.
 *
 * Every connection has one request in flight; the next is sent when the answer
 * has been read to its end. The latency of every request is kept, so the
 * percentiles are exact. One JSON line is printed. The exit code is 0 only if
 * every answer had an expected status (and length, where one was asked for).
 *
 *   load --mode create  PUT  PREFIX + i, each i once
 *   load --mode append  POST PREFIX + i, a fresh random text body each time
 *   load --mode get     GET  PREFIX + i + QUERY
 *
 * i runs over FIRST .. FIRST + STREAMS - 1, in turn or at random. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "http1.h"

#define HEAD_BYTES_MAX 1024           /* of a request */
#define RECEIVE_BYTES (256 * 1024)    /* one buffer for all connections */
#define BODY_VARIANTS (8u << 20)      /* starting points in the pool of random text */
#define STALL_SECONDS_MAX 30          /* without a single answer: give up */
#define TRANSPORT_ERRORS_MAX 20
#define STATUS_MAX 600

enum mode { CREATE, APPEND, GET };

struct options {
    const char *host;
    int port;
    enum mode mode;
    int connections;
    const char *prefix;
    const char *query;
    const char *content_type;
    uint64_t first;
    uint64_t streams;
    uint64_t count;        /* requests to send; 0: bounded by time alone */
    double seconds;        /* 0: bounded by count alone */
    double warmup_seconds; /* left out of rates and latencies */
    size_t body_bytes;
    int64_t expect_bytes;  /* length every answer's body must have; -1: any */
    int expect_status;
    bool random_order;
    bool disconnect_is_end; /* the server will be killed on purpose */
};

struct connection {
    int fd;
    bool waiting; /* a request is in flight */
    bool wants_write;
    uint64_t started_ns;
    uint64_t stream;
    size_t out_at;
    size_t out_bytes;
    char *out;
    struct http_reader reader;
};

static struct options options = {
    .host = "127.0.0.1",
    .connections = 1,
    .prefix = "/v1/stream/bench-",
    .query = "?offset=-1",
    .content_type = "text/plain",
    .streams = 1,
    .body_bytes = 256,
    .expect_bytes = -1,
};

static struct connection *connections;
static struct sockaddr_in server_address;
static int poller;
static char *body_pool;
static char receive_buffer[RECEIVE_BYTES];

static uint64_t start_ns, warm_ns, deadline_ns, last_answer_ns;
static uint64_t issued, in_flight, answered;
static uint64_t window_answers, window_bytes;
static uint64_t status_counts[STATUS_MAX];
static uint64_t unexpected, wrong_length, transport_errors, reconnects, unanswered;
static uint64_t lowest_failed = UINT64_MAX;
static bool stopping, disconnected;
static uint64_t *latencies_ns;
static size_t latency_count, latency_room;
static uint64_t random_state = 0x9e3779b97f4a7c15u;

static void die(const char *what)
{
    fprintf(stderr, "load: %s: %s\n", what, strerror(errno));
    exit(2);
}

static void usage(const char *what)
{
    fprintf(stderr,
            "load: %s\n"
            "usage: load --port P --mode create|append|get [--host A] [--connections N]\n"
            "  [--prefix /v1/stream/x-] [--first I] [--streams M] [--order turn|random]\n"
            "  [--count K] [--seconds S] [--warmup S] [--body-bytes B] [--content-type T]\n"
            "  [--query Q] [--expect-status C] [--expect-bytes B] [--disconnect-is-end]\n",
            what);
    exit(2);
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t next_random(void) /* xorshift64 */
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

/* --- requests ---------------------------------------------------------------- */

static void fill_body_pool(void)
{
    static const char alphabet[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    size_t bytes = options.body_bytes + BODY_VARIANTS;
    body_pool = malloc(bytes);
    if (body_pool == NULL)
        die("malloc");
    uint64_t bits = 0;
    for (size_t i = 0; i < bytes; i++, bits >>= 6) {
        if (i % 10 == 0)
            bits = next_random();
        body_pool[i] = alphabet[bits & 63];
    }
}

static uint64_t choose_stream(void)
{
    if (options.mode != CREATE && options.random_order)
        return options.first + next_random() % options.streams;
    return options.first + issued % options.streams;
}

static void write_request(struct connection *c)
{
    static const char *const methods[] = {"PUT", "POST", "GET"};
    size_t body_bytes = options.mode == APPEND ? options.body_bytes : 0;
    int n = snprintf(c->out, HEAD_BYTES_MAX, "%s %s%llu%s HTTP/1.1\r\nHost: %s:%d\r\n",
                     methods[options.mode], options.prefix, (unsigned long long)c->stream,
                     options.mode == GET ? options.query : "", options.host, options.port);
    if (n > 0 && n < HEAD_BYTES_MAX && options.mode != GET)
        n += snprintf(c->out + n, (size_t)(HEAD_BYTES_MAX - n),
                      "Content-Type: %s\r\nContent-Length: %zu\r\n", options.content_type,
                      body_bytes);
    if (n < 0 || n + 2 >= HEAD_BYTES_MAX)
        usage("the request head is too long");
    memcpy(c->out + n, "\r\n", 2);
    if (body_bytes > 0)
        memcpy(c->out + n + 2, body_pool + next_random() % BODY_VARIANTS, body_bytes);
    c->out_at = 0;
    c->out_bytes = (size_t)n + 2 + body_bytes;
}

/* --- connections --------------------------------------------------------------- */

static void watch(struct connection *c, int operation, bool for_write)
{
    struct epoll_event event = {.events = EPOLLIN | (for_write ? EPOLLOUT : 0), .data.ptr = c};
    if (epoll_ctl(poller, operation, c->fd, &event) != 0)
        die("epoll_ctl");
    c->wants_write = for_write;
}

static bool open_connection(struct connection *c)
{
    int one = 1;
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (c->fd < 0)
        die("socket");
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (connect(c->fd, (struct sockaddr *)&server_address, sizeof server_address) != 0) {
        close(c->fd);
        c->fd = -1;
        return false;
    }
    if (fcntl(c->fd, F_SETFL, O_NONBLOCK) != 0)
        die("fcntl");
    watch(c, EPOLL_CTL_ADD, false);
    return true;
}

static void lost(struct connection *c, const char *why);

static void flush_request(struct connection *c)
{
    while (c->out_at < c->out_bytes) {
        ssize_t n = send(c->fd, c->out + c->out_at, c->out_bytes - c->out_at, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            if (!c->wants_write)
                watch(c, EPOLL_CTL_MOD, true);
            return;
        }
        if (n < 0) {
            lost(c, strerror(errno));
            return;
        }
        c->out_at += (size_t)n;
    }
    if (c->wants_write)
        watch(c, EPOLL_CTL_MOD, false);
}

static void issue(struct connection *c, uint64_t now)
{
    if (options.count > 0 && issued >= options.count)
        stopping = true;
    if (deadline_ns != 0 && now >= deadline_ns)
        stopping = true;
    if (stopping)
        return;
    c->stream = choose_stream();
    write_request(c);
    issued++;
    in_flight++;
    c->waiting = true;
    c->started_ns = now;
    http_reset(&c->reader);
    flush_request(c);
}

static void note_failed(const struct connection *c)
{
    if (c->stream < lowest_failed)
        lowest_failed = c->stream;
}

/* A connection broke. Its request has no known outcome. */
static void lost(struct connection *c, const char *why)
{
    close(c->fd);
    c->fd = -1;
    if (c->waiting) {
        c->waiting = false;
        in_flight--;
        unanswered++;
        note_failed(c);
    }
    if (options.disconnect_is_end) {
        disconnected = stopping = true;
        return;
    }
    if (stopping)
        return;
    fprintf(stderr, "load: connection lost: %s\n", why);
    if (++transport_errors > TRANSPORT_ERRORS_MAX || !open_connection(c)) {
        stopping = true;
        return;
    }
    issue(c, now_ns());
}

/* --- answers --------------------------------------------------------------------- */

static void keep_latency(uint64_t latency_ns)
{
    if (latency_count == latency_room) {
        latency_room = latency_room == 0 ? 1 << 16 : latency_room * 2;
        latencies_ns = realloc(latencies_ns, latency_room * sizeof *latencies_ns);
        if (latencies_ns == NULL)
            die("realloc");
    }
    latencies_ns[latency_count++] = latency_ns;
}

static void check_answer(const struct connection *c)
{
    const struct http_reader *r = &c->reader;
    status_counts[r->status < STATUS_MAX ? r->status : 0]++;
    if (r->status != options.expect_status) {
        if (unexpected++ == 0)
            fprintf(stderr, "load: first unexpected status: %d for stream %llu\n", r->status,
                    (unsigned long long)c->stream);
        note_failed(c);
    } else if (options.expect_bytes >= 0 && r->body_bytes != (uint64_t)options.expect_bytes) {
        if (wrong_length++ == 0)
            fprintf(stderr, "load: a body of %llu bytes, expected %lld\n",
                    (unsigned long long)r->body_bytes, (long long)options.expect_bytes);
    }
}

static void finish(struct connection *c)
{
    uint64_t now = now_ns();
    last_answer_ns = now;
    answered++;
    in_flight--;
    c->waiting = false;
    check_answer(c);
    if (now >= warm_ns && (deadline_ns == 0 || now < deadline_ns)) {
        window_answers++;
        window_bytes += c->reader.body_bytes;
        keep_latency(now - c->started_ns);
    }
    if (!c->reader.keep_alive) {
        close(c->fd);
        reconnects++;
        if (!open_connection(c)) {
            lost(c, "reconnect refused");
            return;
        }
    }
    issue(c, now);
}

static void receive(struct connection *c)
{
    for (;;) {
        ssize_t n = recv(c->fd, receive_buffer, sizeof receive_buffer, 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return;
        if (n < 0) {
            lost(c, strerror(errno));
            return;
        }
        size_t taken = 0;
        if (n == 0 && c->waiting)
            http_feed_close(&c->reader);
        else if (c->waiting)
            taken = http_feed(&c->reader, receive_buffer, (size_t)n, NULL, NULL);
        if (c->waiting && c->reader.state == HTTP_DONE && taken == (size_t)n) {
            finish(c);
            return;
        }
        if (n == 0 || c->reader.state == HTTP_BROKEN || taken < (size_t)n) {
            lost(c, c->reader.why ? c->reader.why : "bytes that belong to no answer");
            return;
        }
        if ((size_t)n < sizeof receive_buffer)
            return; /* level-triggered: the rest will be announced */
    }
}

static void give_up_if_stalled(void)
{
    uint64_t since = last_answer_ns > start_ns ? last_answer_ns : start_ns;
    if (now_ns() - since < (uint64_t)STALL_SECONDS_MAX * 1000000000u)
        return;
    fprintf(stderr, "load: no answer for %d s\n", STALL_SECONDS_MAX);
    transport_errors++;
    for (int i = 0; i < options.connections; i++)
        if (connections[i].waiting)
            note_failed(&connections[i]);
    unanswered += in_flight;
    in_flight = 0;
    stopping = true;
}

static void run(void)
{
    struct epoll_event events[256];
    for (int i = 0; i < options.connections; i++)
        if (!open_connection(&connections[i]))
            die("connect");
    start_ns = now_ns();
    warm_ns = start_ns + (uint64_t)(options.warmup_seconds * 1e9);
    if (options.seconds > 0)
        deadline_ns = warm_ns + (uint64_t)(options.seconds * 1e9);
    for (int i = 0; i < options.connections; i++)
        issue(&connections[i], now_ns());
    while (in_flight > 0) {
        int ready = epoll_wait(poller, events, 256, 200);
        if (ready < 0 && errno != EINTR)
            die("epoll_wait");
        for (int i = 0; i < ready; i++) {
            struct connection *c = events[i].data.ptr;
            if (c->fd >= 0 && (events[i].events & EPOLLOUT))
                flush_request(c);
            if (c->fd >= 0 && (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)))
                receive(c);
        }
        if (ready <= 0)
            give_up_if_stalled();
    }
}

/* --- the report -------------------------------------------------------------------- */

static int compare_ns(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static double percentile_us(double share) /* nearest rank */
{
    if (latency_count == 0)
        return 0;
    size_t rank = (size_t)(share * (double)latency_count + 0.999999999);
    if (rank < 1)
        rank = 1;
    if (rank > latency_count)
        rank = latency_count;
    return (double)latencies_ns[rank - 1] / 1000.0;
}

static double cpu_seconds(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static double window_seconds(void)
{
    if (deadline_ns != 0 && last_answer_ns >= deadline_ns)
        return options.seconds;
    if (last_answer_ns <= warm_ns)
        return 0;
    return (double)(last_answer_ns - warm_ns) / 1e9;
}

/* Mode create: every stream below this index was acknowledged. */
static uint64_t acknowledged_below(void)
{
    uint64_t next = options.first + issued;
    return lowest_failed < next ? lowest_failed : next;
}

static void print_report(double client_cpu_seconds)
{
    double seconds = window_seconds();
    double rate = seconds > 0 ? (double)window_answers / seconds : 0;
    double megabytes = seconds > 0 ? (double)window_bytes / seconds / 1e6 : 0;
    qsort(latencies_ns, latency_count, sizeof *latencies_ns, compare_ns);
    printf("{\"connections\": %d, \"requests\": %llu, \"requests_total\": %llu, "
           "\"seconds\": %.6f, \"rate\": %.2f, \"bytes\": %llu, \"megabytes_per_s\": %.3f, ",
           options.connections, (unsigned long long)window_answers, (unsigned long long)answered,
           seconds, rate, (unsigned long long)window_bytes, megabytes);
    printf("\"p50_us\": %.1f, \"p90_us\": %.1f, \"p99_us\": %.1f, \"p999_us\": %.1f, "
           "\"max_us\": %.1f, ",
           percentile_us(0.5), percentile_us(0.9), percentile_us(0.99), percentile_us(0.999),
           percentile_us(1));
    printf("\"statuses\": {");
    const char *separator = "";
    for (int status = 0; status < STATUS_MAX; status++) {
        if (status_counts[status] == 0)
            continue;
        printf("%s\"%d\": %llu", separator, status, (unsigned long long)status_counts[status]);
        separator = ", ";
    }
    printf("}, \"unexpected\": %llu, \"wrong_length\": %llu, \"transport_errors\": %llu, "
           "\"unanswered\": %llu, \"reconnects\": %llu, \"disconnected\": %s, "
           "\"acknowledged_below\": %llu, \"client_cpu_us\": %.2f}\n",
           (unsigned long long)unexpected, (unsigned long long)wrong_length,
           (unsigned long long)transport_errors, (unsigned long long)unanswered,
           (unsigned long long)reconnects, disconnected ? "true" : "false",
           (unsigned long long)acknowledged_below(),
           answered > 0 ? client_cpu_seconds * 1e6 / (double)answered : 0);
}

/* --- start -------------------------------------------------------------------------- */

static enum mode parse_mode(const char *text)
{
    if (strcmp(text, "create") == 0)
        return CREATE;
    if (strcmp(text, "append") == 0)
        return APPEND;
    if (strcmp(text, "get") == 0)
        return GET;
    usage("--mode is create, append or get");
    return GET;
}

static void parse_options(int argc, char **argv)
{
    static const struct option table[] = {
        {"host", 1, 0, 'h'},          {"port", 1, 0, 'p'},       {"mode", 1, 0, 'm'},
        {"connections", 1, 0, 'c'},   {"prefix", 1, 0, 'x'},     {"query", 1, 0, 'q'},
        {"content-type", 1, 0, 't'},  {"first", 1, 0, 'f'},      {"streams", 1, 0, 's'},
        {"count", 1, 0, 'n'},         {"seconds", 1, 0, 'd'},    {"warmup", 1, 0, 'w'},
        {"body-bytes", 1, 0, 'b'},    {"order", 1, 0, 'o'},      {"expect-status", 1, 0, 'e'},
        {"expect-bytes", 1, 0, 'l'},  {"disconnect-is-end", 0, 0, 'k'}, {0, 0, 0, 0},
    };
    static const int usual_status[] = {201, 204, 200};
    bool has_mode = false;
    int option;
    while ((option = getopt_long(argc, argv, "", table, NULL)) != -1) {
        switch (option) {
        case 'h': options.host = optarg; break;
        case 'p': options.port = atoi(optarg); break;
        case 'm': options.mode = parse_mode(optarg); has_mode = true; break;
        case 'c': options.connections = atoi(optarg); break;
        case 'x': options.prefix = optarg; break;
        case 'q': options.query = optarg; break;
        case 't': options.content_type = optarg; break;
        case 'f': options.first = strtoull(optarg, NULL, 10); break;
        case 's': options.streams = strtoull(optarg, NULL, 10); break;
        case 'n': options.count = strtoull(optarg, NULL, 10); break;
        case 'd': options.seconds = atof(optarg); break;
        case 'w': options.warmup_seconds = atof(optarg); break;
        case 'b': options.body_bytes = strtoull(optarg, NULL, 10); break;
        case 'o': options.random_order = strcmp(optarg, "random") == 0; break;
        case 'e': options.expect_status = atoi(optarg); break;
        case 'l': options.expect_bytes = strtoll(optarg, NULL, 10); break;
        case 'k': options.disconnect_is_end = true; break;
        default: usage("unknown option");
        }
    }
    if (!has_mode || options.port <= 0 || options.connections <= 0 || options.streams == 0)
        usage("--mode and --port are needed; connections and streams start at 1");
    if (options.mode == CREATE && (options.count == 0 || options.count > options.streams))
        options.count = options.streams;
    if (options.count == 0 && options.seconds <= 0)
        usage("say when to end: --count or --seconds");
    if (options.expect_status == 0)
        options.expect_status = usual_status[options.mode];
}

static void prepare(void)
{
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);

    server_address.sin_family = AF_INET;
    server_address.sin_port = htons((uint16_t)options.port);
    if (inet_pton(AF_INET, options.host, &server_address.sin_addr) != 1)
        usage("--host is an IPv4 address");
    poller = epoll_create1(EPOLL_CLOEXEC);
    connections = calloc((size_t)options.connections, sizeof *connections);
    if (poller < 0 || connections == NULL)
        die("prepare");
    for (int i = 0; i < options.connections; i++) {
        connections[i].out = malloc(HEAD_BYTES_MAX + options.body_bytes);
        if (connections[i].out == NULL)
            die("malloc");
    }
    fill_body_pool();
}

int main(int argc, char **argv)
{
    parse_options(argc, argv);
    prepare();
    double cpu_before = cpu_seconds();
    run();
    print_report(cpu_seconds() - cpu_before);
    bool failed = unexpected > 0 || wrong_length > 0 || transport_errors > 0 ||
                  (unanswered > 0 && !disconnected);
    return failed ? 1 : 0;
}
